/* Manifests on their way out and back: the file of a copy read without its source, a
 * listing in pieces, and text that is refused. */
#include <limits.h>
#include <sys/resource.h>

#include "io/cache/manage_internal.h"
#include "io/manifest/manifest.h"
#include "io/cache/resume_log.h"
#include "tests/support/stage_fixture.h"

static stage_manifest made;

static void entry(char type, const char *path, const char *target, uint64_t size, uint16_t mode)
{
	stage_entry *e = manifest_add(&made);
	char *copy = manifest_join(&made, "", path);
	if (!e || !copy)
		exit(1);
	*e = (stage_entry){.type = type, .path = copy, .mode = mode, .size = size, .stored = size / 2};
	if (target)
		e->target = manifest_join(&made, "", target);
	if (type == STAGE_FILE) {
		e->sealed = true;
		e->mtime_ns = -5;
		memset(e->sha256, (int)size, sizeof e->sha256);
	}
	if (type == STAGE_DIR)
		e->mtime_ns = 1795226774131054047;
}

static void make(void)
{
	char name[256];
	made.source = strdup("/data/a b\n");
	entry(STAGE_DIR, "", NULL, 0, 0755);
	entry(STAGE_DIR, "sub", NULL, 0, 0500);
	entry(STAGE_FILE, "sub/a", NULL, 7, 0644);
	entry(STAGE_FILE, "sub.x", NULL, 1ull << 60, 0400);
	entry(STAGE_HARDLINK, "sub/b", "sub/a", 0, 0644);
	entry(STAGE_SYMLINK, "sub/l", "../sub.x", 0, 0777);
	entry(STAGE_FILE, "sub/\\ \x01\xff\x7f", NULL, 3, 0777);
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof name, "sub/%0200d", i);
		entry(STAGE_FILE, name, NULL, 1, 0644);
	}
	is_int(manifest_finish(&made, &why), 0, "a manifest is made");
}

static bool equal(const stage_manifest *m, bool listing)
{
	if (m->n != made.n || m->files != made.files || m->bytes != made.bytes || strcmp(m->key, made.key) ||
	    strcmp(m->source, made.source))
		return false;
	for (size_t i = 0; i < m->n; i++) {
		const stage_entry *a = &m->entries[i], *b = &made.entries[i];
		if (strcmp(a->path, b->path) || a->type != b->type || a->mode != b->mode || a->size != b->size ||
		    !a->target != !b->target || (a->target && strcmp(a->target, b->target)) ||
		    (a->type == STAGE_FILE && (a->mtime_ns != b->mtime_ns || memcmp(a->sha256, b->sha256, 32))))
			return false;
		if (listing && (a->mtime_ns != b->mtime_ns || (a->type == STAGE_FILE && a->stored != b->stored)))
			return false;
	}
	return true;
}

static void file(void)
{
	stage_manifest m = {0};
	const char *wrong = NULL;
	is_int(manifest_write(&made, AT_FDCWD, "manifest"), 0, "written");
	bool loaded = manifest_load(&m, AT_FDCWD, "manifest", &wrong);
	ok(loaded, "and loaded (%s)", wrong ? wrong : "right");
	ok(equal(&m, false), "the same entries, checksums, totals and key");
	manifest_clear(&m);

	FILE *f = fopen("manifest", "r+");
	int refused = 0, tries = 0;
	must(f ? 0 : -1, "manifest");
	fseek(f, 0, SEEK_END);
	long size = ftell(f);
	for (long at = 0; at < size; at += 1 + size / 400, tries++) {
		fseek(f, at, SEEK_SET);
		int was = fgetc(f);
		fseek(f, at, SEEK_SET);
		fputc(was ^ 1, f);
		fflush(f);
		refused += !manifest_load(&m, AT_FDCWD, "manifest", &wrong) && !m.n && wrong;
		fseek(f, at, SEEK_SET);
		fputc(was, f);
	}
	fclose(f);
	is_int(refused, tries, "a bit that has changed is noticed anywhere");
	must(truncate("manifest", size - 1), "truncate");
	ok(!manifest_load(&m, AT_FDCWD, "manifest", &wrong), "so is a byte that is missing");
	ok(!manifest_load(&m, AT_FDCWD, "nothing", &wrong), "and a file");
	like(wrong, "cannot be opened", "which is said");
}

static long most_memory(void)
{
	struct rusage u;
	must(getrusage(RUSAGE_SELF, &u), "getrusage");
	return u.ru_maxrss / 1024;
}

/* Lines without an end, wherever one may stand, by files that take no space. */
static void endless(void)
{
	enum { MIB = 256 };
	static const char *const heads[] = {"", "gradcomp-manifest 2\nsource /x\nentries 2\nfiles 1\nbytes 0\n",
	                                    "gradcomp-manifest 2\n"};
	stage_manifest m = {0};
	cache_manifest_head head;
	const char *wrong = NULL;
	long before = most_memory();
	for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
		FILE *f = fopen("manifest", "w");
		must(!f || fputs(heads[i], f) < 0 || fclose(f) ? -1 : 0, "manifest");
		must(truncate("manifest", (off_t)MIB << 20), "truncate");
		ok(!manifest_load(&m, AT_FDCWD, "manifest", &wrong) && !m.n,
		   "a line of %d MiB behind '%.19s' is refused", MIB, heads[i]);
	}
	ok(!cache_manifest_head_read(AT_FDCWD, &head), "a head that goes on with it as well");
	/* A run that reads a copy it has a listing of meets these. */
	must(manifest_write(&made, AT_FDCWD, "manifest"), "manifest");
	size_t bytes;
	char *first = manifest_head(&made, "gradcomp-manifest 2", &bytes);
	must(truncate("manifest", (off_t)bytes), "truncate");
	must(truncate("manifest", (off_t)MIB << 20), "truncate");
	free(first);
	ok(!manifest_read(&made, AT_FDCWD, "manifest", &wrong), "and one behind the head of a copy that is known");
	/* Files with checksums, and a journal. */
	must(truncate("manifest", 0), "truncate");
	must(mkdir("temp", 0700), "mkdir");
	FILE *f = fopen("temp/journal", "w");
	must(!f || fclose(f) || truncate("temp/journal", (off_t)MIB << 20) ? -1 : 0, "journal");
	int temp = open("temp", O_RDONLY | O_DIRECTORY);
	resume_log_read(&made, temp);
	close(temp);
	long took = most_memory() - before;
	ok(took < MIB / 4, "%ld MiB of memory are taken by that", took);
}

static void pieces(void)
{
	static char buf[3 * STAGE_LINE_MAX];
	stage_manifest m = {0};
	size_t next = 0;
	int n = 0;
	gradcomp_status st = GRADCOMP_OK;
	for (ssize_t bytes; !st && (bytes = manifest_pack(&made, &next, buf, sizeof buf)) > 0; n++)
		st = manifest_unpack(&m, buf, (size_t)bytes, &why);
	is_int(st, 0, "taken");
	ok(n > 3, "in %d pieces", n);
	is_int(manifest_unpacked(&m, &why), 0, "all of it");
	ok(equal(&m, true), "the same entries, times of directories and holes too");
	manifest_clear(&m);
}

#define SUM "98ea6e4f216f2fb4b69fff9b3a44842c38686ca685f3f55dc48c5d3fb1107be4"
#define HEAD(entries, files, bytes) \
	"gradcomp-listing 2\nsource /x\nentries " entries "\nfiles " files "\nbytes " bytes "\n"
#define ROOT "- 0 d 0755 0 0 .\n"
#define BODY(entries, rest) HEAD(entries, "1", "3") ROOT rest

static const struct {
	const char *text, *wrong, *what;
} cases[] = {
	{BODY("2", "- 3 f 0644 3 -1 a\n"), NULL, "a right one"},
	{BODY("2", SUM " 3 f 0644 3 5 a\n"), NULL, "with a checksum"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 l 0777 0 0 b a\n"), NULL, "with a link"},
	{"", "all its entries", "nothing"},
	{"gradcomp-listing 1\n", "first lines", "another version"},
	{HEAD("18446744073709551615", "1", "1"), "first lines", "2^64 - 1 entries"},
	{HEAD("9223372036854775807", "1", "1") ROOT, "all its entries", "2^63 - 1 entries"},
	{HEAD("01", "0", "0") ROOT, "first lines", "a number with a zero before it"},
	{HEAD("0", "0", "0"), "all its entries", "no entries"},
	{HEAD("0", "0", "0") ROOT, "more entries", "one too many"},
	{BODY("1", ""), "totals", "wrong totals"},
	{HEAD("1", "0", "0") "- 0 f 0644 0 0 .\n", "tree itself", "a file as the tree"},
	{HEAD("1", "0", "0") "- 0 d 0755 0 0 a\n", "tree itself", "no tree"},
	{BODY("2", "- 3 f 0644 3 1 /a\n"), "out of the tree", "an absolute path"},
	{BODY("2", "- 3 f 0644 3 1 ..\n"), "out of the tree", ".."},
	{BODY("3", "- 0 d 0755 0 0 a\n- 3 f 0644 3 1 a/../b\n"), "out of the tree", ".. within"},
	{BODY("3", "- 0 d 0755 0 0 a\n- 3 f 0644 3 1 a//b\n"), "out of the tree", "an empty component"},
	{BODY("3", "- 0 d 0755 0 0 a\n- 3 f 0644 3 1 a/\n"), "out of the tree", "a slash at the end"},
	{BODY("3", "- 0 d 0755 0 0 a\n- 3 f 0644 3 1 a/.\n"), "out of the tree", "a dot"},
	{BODY("2", "- 3 f 0644 3 1 a/b\n"), "without a directory", "no parent"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 f 0644 0 1 a/b\n"), "without a directory", "a file as parent"},
	{BODY("3", "- 0 l 0777 0 0 a .\n- 3 f 0644 3 1 a/b\n"), "without a directory", "a link as parent"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 f 0644 0 1 a\n"), "in order", "a path twice"},
	{BODY("3", "- 3 f 0644 3 1 b\n- 0 f 0644 0 1 a\n"), "in order", "out of order"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 l 0777 0 0 b ../x\n"), "leads out", "a link to outside"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 l 0777 0 0 b /x\n"), "leads out", "an absolute link"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 l 0777 0 0 b\n"), "too few", "a link without target"},
	{BODY("2", "- 3 f 0644 3 1 a b\n"), "too many", "a file with one"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 h 0644 0 0 b c\n"), "hard link", "a hard link to nothing"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 h 0644 0 0 b .\n"), "hard link", "to a directory"},
	{BODY("3", "- 3 f 0644 3 1 a\n- 0 h 0644 0 0 b b\n"), "hard link", "to itself"},
	{BODY("2", "- 3 f 0644 3 1 a\\x00b\n"), "wrong value", "a zero byte in a name"},
	{BODY("2", "- 3 f 0644 3 1 a\\x0\n"), "wrong value", "half an escape"},
	{BODY("2", "- 3 f 0644 3 1 a\\n\n"), "wrong value", "another escape"},
	{BODY("2", "- 3 f 0644 3 1 a\x7f\n"), "wrong value", "a control character"},
	{BODY("2", "- 3 f 7644 3 1 a\n"), "wrong value", "set-id bits"},
	{BODY("2", "- 3 f 0044 3 1 a\n"), "wrong value", "a file its owner cannot read"},
	{BODY("2", "- 3 s 0644 3 1 a\n"), "wrong value", "a socket"},
	{BODY("2", "- 3 f 0644 -3 1 a\n"), "wrong value", "a negative size"},
	{BODY("2", "- 3 f 0644 9223372036854775808 1 a\n"), "wrong value", "a size of 2^63"},
	{HEAD("3", "2", "3") ROOT "- 3 f 0644 9223372036854775807 1 a\n- 3 f 0644 9223372036854775807 1 b\n",
         "more bytes", "a sum of 2^64"},
	{BODY("2", "- 3 f 0644 3 --1 a\n"), "wrong value", "two signs"},
	{BODY("2", "- 3 f 0644 3  a\n"), "wrong value", "a time that is nothing"},
	{BODY("2", "xyz 3 f 0644 3 1 a\n"), "checksum that is none", "a checksum of three letters"},
	{BODY("3", "- 3 f 0644 3 1 a\n" SUM " 0 d 0755 0 0 b\n"), "none belongs", "a checksum of a directory"},
	{BODY("2", "- 3 f 0644 3 1 a"), "within a line", "no end of the line"},
	{BODY("2", "\n"), "checksum that is none", "an empty line"},
};

static void refusals(void)
{
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char *text = strdup(cases[i].text);
		stage_manifest m = {0};
		gradcomp_status st = manifest_unpack(&m, text, strlen(text), &why);
		if (!st)
			st = manifest_unpacked(&m, &why);
		if (cases[i].wrong)
			like(st ? why.text : "(taken)", cases[i].wrong, cases[i].what);
		else if (!is_int(st, 0, "%s", cases[i].what))
			printf("# %s\n", why.text);
		manifest_clear(&m);
		free(text);
	}
	char zero[] = BODY("2", "- 3 f 0644 3 1 a_b\n");
	*strchr(zero, '_') = 0;
	stage_manifest m = {0};
	is_int(manifest_unpack(&m, zero, sizeof zero - 1, &why), GRADCOMP_ERR_INVALID, "a byte that is zero");
	manifest_clear(&m);
}

/* Measures what a million files take: entries and their paths, nothing else that grows. */
static void memory(void)
{
	enum { N = 100000 };
	stage_manifest m = {.source = strdup("/x")};
	char name[64];
	size_t text = 0;
	for (int i = 0; i < N; i++) {
		snprintf(name, sizeof name, "dir%04d/file%08d.jpg", i / 1000, i);
		stage_entry *e = manifest_add(&m);
		*e = (stage_entry){.type = STAGE_FILE, .path = manifest_join(&m, "", name), .mode = 0644};
		text += strlen(name) + 1;
	}
	size_t each = sizeof *m.entries + text / N;
	ok(each <= 128, "%zu bytes for a file with a path of %zu", each, text / N - 1);
	ok(m.capacity <= N + N / 2 + 64, "room for %zu entries when there are %d", m.capacity, N);
	manifest_clear(&m);
}

int main(void)
{
	bench_begin();
	make();
	file();
	pieces();
	refusals();
	memory();
	endless();
	manifest_clear(&made);
	return done_testing();
}
