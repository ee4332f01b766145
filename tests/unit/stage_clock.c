/* Times that cannot be trusted: of files from the future, from before 1970 and from
 * beyond what nanoseconds can count, and a cache from before the clock was set back. */
#include <time.h>

#include "tests/support/stage_fixture.h"

static const struct {
	const char *name;
	int64_t seconds;
	long ns;
	bool kept; /* nanoseconds since 1970 fit 64 bits */
} files[] = {
	{"future", 4102444800, 5, true},
	{"moon", -14182940, 999999999, true},
	{"half_before", -1, 500000000, true},
	{"zero", 0, 0, true},
	{"last", 9223372036, 854775807, true},
	{"beyond", 9223372036, 854775808, false},
	{"year_36812", INT64_C(1) << 40, 1, false},
	{"first", -9223372036, 0, true},
	{"before_that", -9223372037, 1, false},
	{"ice_age", -(INT64_C(1) << 40), 0, false},
};
#define FILES (sizeof files / sizeof *files)

static void odd_times(void)
{
	char path[64];
	size_t kept = 0, possible = 0;
	for (size_t i = 0; i < FILES; i++) {
		const struct timespec t[2] = {{.tv_nsec = UTIME_NOW}, {files[i].seconds, files[i].ns}};
		struct stat st;
		snprintf(path, sizeof path, "src/%s", files[i].name);
		put(path, files[i].name);
		must(utimensat(AT_FDCWD, path, t, 0), path);
		/* Filesystems have limits of their own. */
		must(stat(path, &st), path);
		possible += files[i].kept && st.st_mtim.tv_sec == files[i].seconds;
	}
	if (!is_int(stage(), 0, "files of all times"))
		printf("# %s\n", why.text);
	for (size_t i = 0; i < FILES; i++) {
		struct stat st = copied_stat(files[i].name);
		ok(!strcmp(copied(files[i].name), files[i].name), "%s is there", files[i].name);
		kept += files[i].kept && st.st_mtim.tv_sec == files[i].seconds && st.st_mtim.tv_nsec == files[i].ns;
	}
	is_int(kept, possible, "and has its time where it can be counted");
	is_int(stage_with(GRADCOMP_STAGE_VERIFY, NULL, NULL), 0, "again");
	ok(got.cached, "it is a hit");
}

static void set_back(void)
{
	char path[8200];
	const struct timespec ahead[2] = {{.tv_sec = time(NULL) + 86400}, {.tv_sec = time(NULL) + 86400}};
	static const char *const names[] = {"..", "../manifest", "../used"};
	struct stat st;
	for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
		snprintf(path, sizeof path, "%s/%s", got.path, names[i]);
		must(utimensat(AT_FDCWD, path, ahead, 0), path);
	}
	is_int(stage(), 0, "a copy that was published tomorrow");
	ok(got.cached, "is a hit");
	must(stat(path, &st), path);
	ok(st.st_mtim.tv_sec < ahead[1].tv_sec, "and was used today");
	put("src/future", "another");
	is_int(stage(), 0, "a newer one beside it");
	ok(!got.cached && !strcmp(copied("future"), "another"), "is made");
}

int main(void)
{
	bench_begin_in("/dev/shm");
	odd_times();
	set_back();
	return done_testing();
}
