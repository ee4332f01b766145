/* Samples opened and read with every allocation failing in turn: the call
 * fails in words or needs it not, and nothing is kept. */
#include "tests/support/inject/inject.h"

#include "tests/support/dir_entries.h"
#include "gradcomp/dataset.h"
#include "tests/support/tar_writer.h"

static const char *dataset;
static char value[65536];

static void *alloc(gradcomp_value_buffer *out, uint64_t bytes)
{
	(void)out;
	return bytes <= sizeof value ? value : NULL;
}

static gradcomp_status reading(gradcomp_error *err)
{
	gradcomp_samples_options o = {.struct_size = sizeof o, .workers = 3};
	gradcomp_value_buffer out = {.struct_size = sizeof out, .alloc = alloc};
	gradcomp_samples *s;
	gradcomp_status status = gradcomp_samples_open(dataset, &o, &s, err);
	for (uint64_t i = 0; !status && i < gradcomp_samples_count(s); i++)
		status = gradcomp_samples_load(s, i, &out, err);
	gradcomp_samples_close(s);
	return status;
}

static void each(const char *what, gradcomp_status (*body)(gradcomp_error *err))
{
	int bad = 0, failed = 0, fds = entries("/proc/self/fd"), files = entries(".");
	unsigned long n = 1;
	for (;; n++) {
		gradcomp_error err = {0};
		char fault[40];
		snprintf(fault, sizeof fault, "alloc=%lu", n);
		must(inject_set(fault), fault);
		inject_on();
		gradcomp_status status = body(&err);
		inject_off();
		inject_counts seen = inject_seen();
		bool right = status ? status == err.status && err.text[0] &&
		                              (status == GRADCOMP_ERR_NOMEM || status == GRADCOMP_ERR_IO)
		                    : true;
		if (!right || seen.live || entries("/proc/self/fd") != fds || entries(".") > files) {
			printf("# allocation %lu: status %d, '%s', %lu kept\n", n, status, err.text, seen.live);
			bad++;
		}
		failed += status != 0;
		if (!seen.faults)
			break;
	}
	tap_tried(n - 1, "injected faults");
	ok(!bad && failed > 3, "%s: of %lu allocations %d are needed, none is lost", what, n - 1, failed);
}

int main(void)
{
	begin("inject-samples");
	must(mkdir("tree", 0755), "mkdir");
	must(mkdir("tar", 0755), "mkdir");
	for (int i = 0; i < 3; i++) {
		char path[64], pax[100] = "";
		snprintf(path, sizeof path, "tree/%d", i);
		must(mkdir(path, 0755), path);
		snprintf(path, sizeof path, "tree/%d/sub", i);
		must(mkdir(path, 0755), path);
		snprintf(path, sizeof path, "tree/%d/sub/file", i);
		put(path, path);
		pax_add(pax, sizeof pax, "path", "long/name.jpg");
		tar_member("x", 'x', pax, strlen(pax));
		tar_file("a.jpg", "picture");
		tar_member("././@LongLink", 'L', "other/name.jpg", 15);
		tar_file("b.jpg", "picture");
		tar_file("other/name.cls", "3");
		snprintf(path, sizeof path, "tar/%d.tar", i);
		tar_end(path);
	}
	dataset = "tree";
	each("a folder", reading);
	dataset = "tar";
	each("shards", reading);
	return done_testing();
}
