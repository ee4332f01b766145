/* Room for a copy: budget, marks, quota, free space; what goes first, what never goes,
 * and what is said when it is not enough. */
#include "tests/support/cache_fixture.h"

static stage_run run;

static gradcomp_status room(uint64_t kib)
{
	memset(&why, 0, sizeof why);
	return cache_ensure_space(&run, area_fd, key_of(15), kib * 1024, 1, &why);
}

static void budget(const char *bytes, const char *evict)
{
	setenv("GRADCOMP_STAGE_CACHE_BYTES", bytes, 1);
	setenv("GRADCOMP_STAGE_EVICT", evict, 1);
}

/* The digits of the published copies in the area. */
static const char *copies(void)
{
	static char out[17];
	int n = 0;
	for (int i = 0; i < 16; i++)
		if (is_there(key_of(i)))
			out[n++] = "0123456789abcdef"[i];
	out[n] = 0;
	return out;
}

/* Six copies of about 104 KiB; 1 was used first, 6 last. */
static void six(void)
{
	empty_area();
	for (int i = 1; i <= 6; i++)
		put_copy(key_of(i), 100, 1000 - i);
}

static void marks(void)
{
	budget("10M", "100,100");
	six();
	is_int(room(100), 0, "below the high mark");
	is_str(copies(), "123456", "nothing goes");

	budget("1M", "70,50");
	is_int(room(100), 0, "above the high mark");
	is_str(copies(), "456", "the least recently used go, down to the low mark");
	is_int(system("test $(ls -A cache/* | wc -l) = 3"), 0, "and leave nothing");

	budget("700K", "100,1");
	six();
	is_int(room(600), 0, "a low mark that cannot be reached");
	is_str(copies(), "", "all may go");

	budget("700K", "100,100");
	six();
	is_int(room(800), GRADCOMP_ERR_IO, "more than the budget");
	like(why.text, "no space in the cache: needs 819.2 kB", "says what is needed");
	like(why.text, "of the 716.8 kB that stage.cache_bytes allows", "and what is allowed");
	is_str(copies(), "123456", "and nothing went in vain");
}

static void what_stays(void)
{
	const cache_lease_info pin = {.name = "pin", .pin = true};
	int64_t holder;
	int lock;
	budget("700K", "100,100");
	six();
	pid_t pid = sleeper();
	is_int(cache_lease(area_fd, key_of(1), pid, "job 12.0", &why), 0, "a lease on the oldest");
	is_int(cache_lease_write(area_fd, key_of(2), &pin, &why), 0, "a pin on the next");
	is_int(cache_lock_try(area_fd, key_of(3), &lock, &holder), 1, "the third is being made anew");
	is_int(room(300), 0, "room");
	is_str(copies(), "123", "is made of the others");
	is_int(room(500), GRADCOMP_ERR_IO, "more there is not");
	like(why.text, "leased by job 12.0", "who leases is said");
	like(why.text, "pinned", "and that one is pinned");
	like(why.text, "being staged", "and that one is being staged");
	cache_lock_release(area_fd, key_of(3), lock);
	is_int(room(400), 0, "when it is finished");
	is_str(copies(), "12", "it may go");
	end_process(pid);
	is_int(room(500), 0, "when the job has ended");
	is_str(copies(), "2", "its copy may");
}

static void order(void)
{
	char temp[80], gone[96];
	budget("700K", "100,100");
	six();
	snprintf(temp, sizeof temp, "%.64s.tmp", key_of(7));
	put_copy(temp, 50, 1);
	is_int(room(100), 0, "with a copy that nobody finishes");
	is_str(copies(), "23456", "it goes first");
	ok(!is_there(temp), "however young it is");

	six();
	snprintf(gone, sizeof gone, "%.64s.gone-0123abcd", key_of(7));
	put_copy(gone, 100, 1);
	is_int(room(16), 0, "with the rest of an eviction that died");
	ok(!is_there(gone) && !strcmp(copies(), "123456"), "that goes, and is enough");

	/* The clock went back: the oldest by name is from the future, and counts as of now. */
	six();
	struct timespec future[2] = {{.tv_sec = time(NULL) + 86400}, {.tv_sec = time(NULL) + 86400}};
	must(utimensat(AT_FDCWD, in_area("%s/used", key_of(1)), future, 0), "utimensat");
	is_int(room(100), 0, "with a time in the future");
	is_str(copies(), "13456", "the order of the others holds, and it is the youngest");

	six();
	must(unlink(in_area("%s/used", key_of(6))), "used");
	struct timespec old[2] = {{.tv_sec = 1000}, {.tv_sec = 1000}};
	put(in_area("%s/manifest", key_of(6)), "");
	must(utimensat(AT_FDCWD, in_area("%s/manifest", key_of(6)), old, 0), "utimensat");
	is_int(room(100), 0, "one that was never used");
	is_str(copies(), "12345", "counts from when it was made");
}

static void quota(void)
{
	budget("10M", "100,100");
	setenv("GRADCOMP_STAGE_USER_BYTES", "700K", 1);
	six();
	is_int(room(200), 0, "a quota below the budget");
	is_str(copies(), "3456", "evicts as much as it has to");
	is_int(room(800), GRADCOMP_ERR_IO, "more than the quota");
	like(why.text, "stage.user_bytes allows", "is named");
	unsetenv("GRADCOMP_STAGE_USER_BYTES");
	budget("nothing", "100,100");
	is_int(room(1), GRADCOMP_ERR_INVALID, "a budget that is none");
	budget("101%", "100,100");
	is_int(room(1), GRADCOMP_ERR_INVALID, "nor is that");
}

/* The note takes a block itself. */
static bool about(uint64_t bytes, uint64_t real)
{
	return bytes + 16384 > real && bytes < real + 16384;
}

/* Sizes are kept in a file, which is not believed blindly. */
static void sizes(void)
{
	cache_entry item;
	char line[64];
	six();
	is_int(cache_entry_read(area_fd, key_of(1), &item, &why), 0, "a copy");
	uint64_t real = item.size.bytes;
	cache_entry_free(&item);
	ok(real >= 100 << 10 && real < 140 << 10, "of 100 KiB takes %llu bytes", (unsigned long long)real);
	FILE *f = fopen(in_area("%s/size", key_of(1)), "r");
	ok(f && fgets(line, sizeof line, f) && fgets(line, sizeof line, f), "which are noted");
	unsigned long long noted = 0;
	ok(sscanf(line, "allocated %llu", &noted) == 1 && noted == real, "as they are");
	if (f)
		fclose(f);
	put(in_area("%s/size", key_of(1)), "gradcomp-size 1\nallocated 4096 9\n");
	is_int(cache_entry_read(area_fd, key_of(1), &item, &why), 0, "the note");
	is_int(item.size.bytes, 4096, "saves the sum");
	cache_entry_free(&item);

	static const char *const absurd[] = {
		"gradcomp-size 1\nallocated 999999999999999999 9\n",
		"gradcomp-size 1\nallocated -1 9\n",
		"gradcomp-size 1\nallocated 99999999999999999999999999 9\n",
		"gradcomp-size 1\nallocated 4096\n",
		"gradcomp-size 9\nallocated 4096 9\n",
		"gradcomp-size 1\nreserved 4096 9\n",
		"",
	};
	for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++) {
		put(in_area("%s/size", key_of(1)), absurd[i]);
		cache_entry_read(area_fd, key_of(1), &item, &why);
		ok(about(item.size.bytes, real), "an absurd note (%zu) is made anew", i);
		cache_entry_free(&item);
	}
	must(unlink(in_area("%s/size", key_of(1))), "size");
	must(symlink("/etc/passwd", in_area("%s/size", key_of(1))), "link");
	cache_entry_read(area_fd, key_of(1), &item, &why);
	ok(about(item.size.bytes, real) && system("grep -q root /etc/passwd") == 0, "a link is not followed");
	cache_entry_free(&item);

	put(in_area("%s/data/a", key_of(2)), "1");
	must(link(in_area("%s/data/file", key_of(2)), in_area("%s/data/b", key_of(2))), "link");
	cache_size size;
	int dir = openat(area_fd, key_of(2), O_RDONLY | O_DIRECTORY);
	is_int(cache_measure(dir, &size), 0, "a file of two names");
	ok(size.bytes < real + 20480, "counts once");
	close(dir);
}

/* The copy that is going to be replaced is nobody's to remove before. */
static void replaced(void)
{
	char gone[96];
	budget("700K", "100,100");
	empty_area();
	put_copy(key_of(15), 400, 5);
	snprintf(gone, sizeof gone, "%.64s.gone-0123abcd", key_of(15));
	put_copy(gone, 100, 5);
	is_int(room(400), GRADCOMP_ERR_IO, "no room beside a damaged copy");
	like(why.text, "damaged, to be replaced", "is said so");
	ok(is_there(key_of(15)) && is_there(gone), "and nothing goes in vain");
	is_int(room(200), 0, "a smaller one");
	ok(is_there(key_of(15)) && !is_there(gone), "leaves it, but not the rest of an older one");
	empty_area();
}

/* Two who make room at once: the second counts what the first is going to write. */
static void promised(void)
{
	char temp[80], mine[80];
	int64_t holder;
	int lock;
	empty_area();
	budget("700K", "100,100");
	snprintf(mine, sizeof mine, "%s.tmp", key_of(15));
	snprintf(temp, sizeof temp, "%.64s.tmp", key_of(7));
	must(mkdir(in_area("%s", mine), 0700), "tmp");
	is_int(cache_lock_try(area_fd, key_of(15), &lock, &holder), 1, "a producer");
	is_int(room(500), 0, "asks for most of the budget");
	is_int(room(500), 0, "or asks again: it does not count itself");
	is_int(cache_ensure_space(&run, area_fd, key_of(7), 300 << 10, 1, &why), GRADCOMP_ERR_IO,
	       "another one gets the rest");
	like(why.text, "being staged", "and is told why");
	cache_lock_release(area_fd, key_of(15), lock);
	is_int(cache_ensure_space(&run, area_fd, key_of(7), 300 << 10, 1, &why), 0,
	       "when the first has died it gets all");
	ok(is_there(mine), "and what that one left stays while there is room");
	is_int(cache_ensure_space(&run, area_fd, key_of(7), 696 << 10, 1, &why), 0, "but not longer");
	ok(!is_there(mine), "it is the first to go");
	empty_area();
}

int main(void)
{
	static const gradcomp_stage_options nothing = {.struct_size = sizeof nothing};
	bench_begin();
	area_begin();
	run.options = &nothing;
	snprintf(run.where, sizeof run.where, "%s", area_path);
	marks();
	what_stays();
	order();
	quota();
	sizes();
	replaced();
	promised();
	return done_testing();
}
