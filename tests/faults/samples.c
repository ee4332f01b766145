/* Samples opened and read with every allocation failing in turn: the call
 * fails in words or needs it not, and nothing is kept. */
#include "tests/support/inject/each_allocation.h"

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
	gradcomp_status st = gradcomp_samples_open(dataset, &o, &s, err);
	for (uint64_t i = 0; !st && i < gradcomp_samples_count(s); i++)
		st = gradcomp_samples_load(s, i, &out, err);
	gradcomp_samples_close(s);
	return st;
}

static int files;

static const char *elsewhere(gradcomp_status status)
{
	if (status && status != GRADCOMP_ERR_NOMEM && status != GRADCOMP_ERR_IO)
		return "another failure";
	return entries(".") > files ? "a file is left" : NULL;
}

static void each(const char *what)
{
	files = entries(".");
	each_allocation_fails(&(each_allocation){what, reading, 3, .wrong = elsewhere});
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
	each("a folder");
	dataset = "tar";
	each("shards");
	return done_testing();
}
