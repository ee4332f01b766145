/* manage.h over copies that gradcomp_stage() made, and over what enemies and
 * crashes leave in an area. */
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>

#include "tests/support/cache_fixture.h"
#include "io/cache/manage.h"

static gradcomp_cache_options dry = {.struct_size = sizeof dry, .flags = GRADCOMP_CACHE_DRY_RUN};
static gradcomp_cache_options force = {.struct_size = sizeof force, .flags = GRADCOMP_CACHE_FORCE};

struct seen {
	int n[4]; /* by kind */
	char names[4096], holder[128];
	gradcomp_cache_entry last;
	uint32_t leases;
};

static int see(void *ctx, const gradcomp_cache_entry *e)
{
	struct seen *s = ctx;
	s->n[e->kind]++;
	size_t n = strlen(s->names);
	snprintf(s->names + n, sizeof s->names - n, "%.8s ", e->kind == GRADCOMP_CACHE_FOREIGN ? e->name : e->key);
	if (e->kind == GRADCOMP_CACHE_PUBLISHED) {
		s->last = *e;
		s->leases = e->nleases;
		if (e->nleases)
			snprintf(s->holder, sizeof s->holder, "%s", e->leases[0].holder);
	}
	return 0;
}

static struct seen list(void)
{
	struct seen s = {0};
	is_int(gradcomp_cache_each(NULL, see, &s, &why), 0, "listed");
	return s;
}

static char removed_text[4096];
static int removed_count;

static void removed(void *ctx, const char *what, const char *name, uint64_t bytes)
{
	size_t n = strlen(removed_text);
	(void)ctx;
	(void)bytes;
	removed_count++;
	snprintf(removed_text + n, sizeof removed_text - n, "%s %.4s; ", what, name);
}

static gradcomp_status gc(const gradcomp_cache_options *o, int64_t job)
{
	removed_text[0] = 0;
	removed_count = 0;
	return gradcomp_cache_gc(o, job, removed, NULL, &why);
}

static char damage[4096];

static void damaged(void *ctx, const char *key, const char *file, const char *what)
{
	size_t n = strlen(damage);
	(void)ctx;
	(void)key;
	snprintf(damage + n, sizeof damage - n, "%s %s; ", file, what);
}

static gradcomp_status verify(const char *key)
{
	damage[0] = 0;
	return gradcomp_cache_verify(NULL, key, damaged, NULL, &why);
}

static void stage_source(void)
{
	must(system("rm -rf src && mkdir -p src/d && echo one >src/a && echo two >src/d/b && ln -s a src/l && "
	            "ln src/a src/h")
	             ? -1
	             : 0,
	     "source");
	must(stage() ? -1 : 0, why.text);
}

static void listing(void)
{
	char key[65], source[200], prefix[16];
	struct seen s = {0};
	is_int(gradcomp_cache_each(NULL, see, &s, &why), 0, "no area is an empty one");
	is_int(gradcomp_cache_find(NULL, "/nothing", key, &why), GRADCOMP_ERR_NOTFOUND, "and nothing is found in it");
	is_int(gc(NULL, 0), 0, "or cleaned up");
	is_int(verify(NULL), 0, "or verified");
	area_begin();
	stage_source();
	s = list();
	is_int(s.n[GRADCOMP_CACHE_PUBLISHED], 1, "one copy");
	is_int(s.last.files, 3, "with its files");
	is_int(s.last.bytes, 8, "and bytes");
	ok(s.last.allocated >= 8 && s.last.inodes >= 6, "and what it takes");
	snprintf(source, sizeof source, "%s/src", bench_dir);
	is_int(gradcomp_cache_find(NULL, source, key, &why), 0, "found by its source");
	is_str(key, got.key, "the right one");
	is_int(gradcomp_cache_find(NULL, "src/../src/", key, &why), 0, "however that is written");
	snprintf(prefix, sizeof prefix, "%.6s", got.key);
	is_int(gradcomp_cache_find(NULL, prefix, key, &why), 0, "or by the beginning of its key");
	is_int(gradcomp_cache_find(NULL, "abc", key, &why), GRADCOMP_ERR_NOTFOUND, "of four digits at least");
	snprintf(prefix, sizeof prefix, "%.4s", got.key);
	memcpy(key, got.key, sizeof key);
	key[63] = key[63] == '0' ? '1' : '0';
	put_copy(key, 1, 0);
	is_int(gradcomp_cache_find(NULL, prefix, key, &why), GRADCOMP_ERR_INVALID, "what begins two keys is refused");
	is_int(gradcomp_cache_evict(NULL, "xyz", NULL, NULL, &why), GRADCOMP_ERR_INVALID, "and what is no key");
	key[63] = got.key[63] == '0' ? '1' : '0';
	is_int(gradcomp_cache_evict(NULL, key, NULL, NULL, &why), 0, "the other is evicted");
}

static void holding(void)
{
	struct seen s;
	is_int(gradcomp_cache_pin(NULL, got.key, &why), 0, "pinned");
	is_int(gradcomp_cache_pin(NULL, got.key, &why), 0, "twice is fine");
	s = list();
	ok(s.last.pinned && s.leases == 1 && s.last.nlive == 1, "and listed so");
	is_int(gradcomp_cache_evict(NULL, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE, "it is not evicted");
	like(why.text, "pinned", "and why is said");
	is_int(gradcomp_cache_evict(&dry, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE, "a dry run knows");
	is_int(gradcomp_cache_unpin(NULL, got.key, &why), 0, "unpinned");
	is_int(gradcomp_cache_unpin(NULL, got.key, &why), 0, "twice is fine");
	is_int(gradcomp_cache_pin(NULL, key_of(9), &why), GRADCOMP_ERR_NOTFOUND, "what is not there cannot be pinned");
	ok(!is_there(in_area("%s.lease", key_of(9))), "and nothing is left of trying");

	is_int(gradcomp_cache_lease_job(NULL, got.key, 12, "job 12, prolog", &why), 0, "leased to a job");
	is_int(gradcomp_cache_lease_job(NULL, got.key, 13, NULL, &why), 0, "and another");
	is_int(gradcomp_cache_evict(&force, got.key, NULL, NULL, &why), GRADCOMP_ERR_STATE, "leased stays by force");
	is_int(gc(NULL, 0), 0, "gc");
	is_str(removed_text, "", "removes no lease of a job");
	is_int(gc(&dry, 12), 0, "a dry run for job 12");
	like(removed_text, "lease of job 12, prolog", "says what it would remove");
	is_int(list().last.nlive, 2, "and does not");
	is_int(gc(NULL, 12), 0, "gc for job 12");
	is_int(removed_count, 1, "removes its lease");
	is_int(gc(NULL, 12), 0, "twice is fine");
	is_int(removed_count, 0, "and removes nothing then");
	s = list();
	ok(s.last.nlive == 1 && !strcmp(s.holder, "job 13"), "that of the other stays");
	is_int(gc(NULL, 13), 0, "until it goes too");
	is_int(gc(NULL, -1), GRADCOMP_ERR_INVALID, "there is no job -1");
}

static void verifying(void)
{
	char path[4300];
	is_int(verify(got.key), 0, "the copy verifies");
	is_int(verify(NULL), 0, "all do");
	snprintf(path, sizeof path, "cd %s && printf ONE >a && rm d/b l && ln -s h l", got.path);
	must(system(path) ? -1 : 0, path);
	is_int(verify(got.key), GRADCOMP_ERR_MISMATCH, "a damaged one does not");
	like(damage, "a does not have its size and checksum; ", "a file");
	like(damage, "d/b is missing; ", "another");
	like(damage, "l does not have", "and a link that leads elsewhere are named");
	like(why.text, "3 files are damaged", "and counted");
	must(stage() ? -1 : 0, why.text);
	put(in_area("%s/manifest", got.key), "gradcomp-manifest 9\n");
	is_int(verify(NULL), GRADCOMP_ERR_MISMATCH, "a manifest of another version");
	like(damage, "manifest ", "is named");
	is_int(list().last.files, 0, "and says nothing in a list");
	is_int(verify(key_of(9)), GRADCOMP_ERR_NOTFOUND, "no such copy");
	must(stage() ? -1 : 0, why.text);

	put("outside", "mine");
	must(unlink(in_area("%s/manifest", got.key)), "manifest");
	must(link("outside", in_area("%s/manifest", got.key)), "link");
	is_int(verify(got.key), GRADCOMP_ERR_MISMATCH, "a manifest that is a hard link to something else");
	must(stage() ? -1 : 0, why.text);
	is_int(verify(got.key), 0, "is replaced with the copy");
	is_int(system("test \"$(cat outside)\" = mine"), 0, "and the other file is as it was");
}

static void leftovers(void)
{
	char name[128];
	empty_area();
	stage_source();
	snprintf(name, sizeof name, "%.64s.tmp", key_of(1));
	put_copy(name, 4, 100000);
	snprintf(name, sizeof name, "%.64s.tmp", key_of(5));
	put_copy(name, 4, 80000);
	put(in_area("%s.lock", key_of(1)), "pid 1\n");
	snprintf(name, sizeof name, "%.64s.gone-01234567", key_of(2));
	put_copy(name, 4, 0);
	must(mkdir(in_area("%s.lease", key_of(3)), 0700), "lease");
	put(in_area("%s.lease/.0123456789abcdef", key_of(3)), "half");
	pid_t pid = sleeper();
	must(cache_lease(area_fd, got.key, pid, "job 1.0", &why) ? -1 : 0, why.text);
	end_process(pid);
	is_int(list().last.nlive, 0, "a lease of a dead process has ended");
	is_int(gc(&dry, 0), 0, "a dry run of gc");
	is_int(removed_count, 4, "would remove four things");
	is_int(gc(NULL, 0), 0, "gc");
	is_int(removed_count, 4, "does");
	like(removed_text, "unfinished copy 1111; ", "what nobody finishes");
	like(removed_text, "rest of an evicted copy 2222; ", "what nobody removes");
	like(removed_text, "unfinished lease 3333; ", "half a lease");
	like(removed_text, "lease of job 1.0 ", "and the lease of the dead");
	snprintf(name, sizeof name, "%.64s.tmp", key_of(5));
	ok(is_there(name), "what was worked on within a day may still be gone on with");
	dirwalk_remove(area_fd, name);
	is_int(system("test $(ls -A cache/* | wc -l) = 1"), 0, "beside the copy it is all that stays");
	is_int(gc(NULL, 0), 0, "twice is fine");
	is_int(removed_count, 0, "and removes nothing");

	pid = sleeper();
	must(cache_lease(area_fd, got.key, pid, "job 2.0", &why) ? -1 : 0, why.text);
	put_copy(key_of(4), 4, 0);
	uint32_t kept = 9;
	is_int(gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why), 0, "clear");
	ok(kept == 1 && is_there(got.key) && !is_there(key_of(4)), "removes what nobody uses");
	end_process(pid);
	must(gradcomp_cache_pin(NULL, got.key, &why) ? -1 : 0, why.text);
	is_int(gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why), 0, "what is pinned");
	ok(kept == 1 && is_there(got.key), "stays");
	is_int(gradcomp_cache_clear(&force, NULL, NULL, &kept, &why), 0, "but not by force");
	is_int(system("test -z \"$(ls -A cache/*/)\""), 0, "and then there is nothing");

	setenv("GRADCOMP_STAGE_CACHE_BYTES", "700K", 1);
	for (int i = 1; i <= 8; i++)
		put_copy(key_of(i), 100, 100 - i);
	is_int(gc(NULL, 0), 0, "an area above its high mark");
	ok(!is_there(key_of(1)) && !is_there(key_of(2)) && is_there(key_of(7)), "is brought down to the low one");
	int n = removed_count;
	is_int(gc(NULL, 0), 0, "and once more");
	ok(n >= 3 && n <= 5 && removed_count == 0, "there is nothing to do");
	unsetenv("GRADCOMP_STAGE_CACHE_BYTES");
}

/* Peak of the resident memory of a gc in a process of its own, in KiB. */
static long gc_memory(int *count)
{
	int ends[2];
	long told[2] = {0};
	must(pipe(ends), "pipe");
	pid_t pid = fork();
	must(pid, "fork");
	if (pid == 0) {
		struct rusage before, after;
		getrusage(RUSAGE_SELF, &before);
		told[1] = gc(NULL, 0) ? -1 : removed_count;
		getrusage(RUSAGE_SELF, &after);
		told[0] = after.ru_maxrss - before.ru_maxrss;
		_exit(write(ends[1], told, sizeof told) != sizeof told);
	}
	must(read(ends[0], told, sizeof told) == sizeof told ? 0 : -1, "read");
	must(waitpid(pid, NULL, 0), "waitpid");
	close(ends[0]), close(ends[1]);
	*count = (int)told[1];
	return told[0];
}

/* A copy of `kib` KiB, by what it says of itself. */
static void put_note(int number, int kib)
{
	char name[STAGE_KEY_BYTES], text[80];
	struct timespec t[2] = {{.tv_sec = 1000000000 + number}, {.tv_sec = 1000000000 + number}};
	snprintf(name, sizeof name, "%064x", number);
	must(mkdir(in_area("%s", name), 0700), name);
	snprintf(text, sizeof text, "gradcomp-size 1\nallocated %d 1\n", kib * 1024);
	put(in_area("%s/size", name), text);
	put(in_area("%s/used", name), "");
	must(utimensat(AT_FDCWD, in_area("%s/used", name), t, 0), "utimensat");
}

/* Sanitizers and valgrind keep what is freed. */
static bool frees_memory(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	return false;
#else
	const char *preload = getenv("LD_PRELOAD");
	return !preload || !strstr(preload, "vgpreload");
#endif
}

static void crowded(void)
{
	enum { COPIES = 3000, NAMES = 30000 };
	int count, stay = 0;
	empty_area();
	for (int i = 0; i < NAMES; i++)
		put(in_area("%d", i), "");
	long kib = gc_memory(&count);
	is_int(count, 0, "an area with %d names that are not ours", NAMES);
	ok(kib < 2048 || !frees_memory(), "takes no memory for each: %ld KiB", kib);
	empty_area();
	setenv("GRADCOMP_STAGE_CACHE_BYTES", "1000K", 1);
	for (int i = 0; i < COPIES; i++)
		put_note(i, 1);
	is_int(gc(&dry, 0), 0, "a dry run with many copies");
	int would = removed_count;
	kib = gc_memory(&count);
	ok(would == count && count > 2000, "says what gc does: %d of %d, %d", count, COPIES, would);
	ok(kib < 2048 || !frees_memory(), "which takes no memory for each: %ld KiB", kib);
	for (int i = 0; i < COPIES; i++) {
		char name[STAGE_KEY_BYTES];
		snprintf(name, sizeof name, "%064x", i);
		stay += i >= count && is_there(name);
	}
	is_int(stay, COPIES - count, "those used last stay");
	unsetenv("GRADCOMP_STAGE_CACHE_BYTES");
	empty_area();
}

static void foreign(void)
{
	char path[300];
	empty_area();
	stage_source();
	put(in_area("notes.txt"), "mine");
	must(mkdir(in_area("%.63s", key_of(1)), 0700), "short");
	must(mkdir(in_area("%sf", key_of(1)), 0700), "long");
	must(mkdir(in_area("%s.gone-0", key_of(1)), 0700), "gone");
	must(symlink("/etc", in_area("%s", key_of(2))), "link");
	must(symlink("/etc", in_area("%s.tmp", key_of(3))), "link");
	put(in_area("%s", key_of(4)), "a file");
	must(mkfifo(in_area("%s.lock", key_of(5)), 0600), "fifo");
	struct seen s = list();
	is_int(s.n[GRADCOMP_CACHE_FOREIGN], 7, "what is not ours is listed as foreign");
	is_int(s.n[GRADCOMP_CACHE_PUBLISHED], 1, "beside the copy");
	is_int(gc(NULL, 0), 0, "gc");
	uint32_t kept;
	is_int(gradcomp_cache_clear(&force, NULL, NULL, &kept, &why), 0, "and clear");
	s = list();
	ok(s.n[GRADCOMP_CACHE_FOREIGN] == 7 && s.n[GRADCOMP_CACHE_PUBLISHED] == 0, "leave it alone");
	is_int(access("/etc/passwd", R_OK), 0, "and follow no link");
	is_int(gradcomp_cache_evict(&force, key_of(2), NULL, NULL, &why), GRADCOMP_ERR_STATE, "nor does evict by name");
	empty_area();

	/* Somebody else's area, and one that is open to others. */
	must(chmod(area_path, 0755), "chmod");
	is_int(gradcomp_cache_each(NULL, see, &s, &why), GRADCOMP_ERR_INSECURE, "an area that others can read");
	is_int(gc(NULL, 0), GRADCOMP_ERR_INSECURE, "is not touched");
	must(chmod(area_path, 0700), "chmod");
	if (geteuid() == 0) {
		must(chown(area_path, 65534, 65534), "chown");
		is_int(gradcomp_cache_each(NULL, see, &s, &why), GRADCOMP_ERR_INSECURE, "nor is that of another user");
		must(chown(area_path, 0, 0), "chown");
	} else
		skip("needs root", "an area of another user");
	must(rename(area_path, "elsewhere"), "rename");
	snprintf(path, sizeof path, "%s/elsewhere", bench_dir);
	must(symlink(path, area_path), "link");
	is_int(gradcomp_cache_each(NULL, see, &s, &why), GRADCOMP_ERR_INSECURE, "nor one that is a link");
	must(unlink(area_path), "unlink");
	must(rename("elsewhere", area_path), "rename");
}

static void many(void)
{
	struct seen s = {0};
	char name[STAGE_KEY_BYTES];
	empty_area();
	for (int i = 0; i < 3000; i++) {
		snprintf(name, sizeof name, "%064x", i * 7919);
		must(mkdirat(area_fd, name, 0700), name);
	}
	double begin = clock_now();
	is_int(gradcomp_cache_each(NULL, see, &s, &why), 0, "3000 entries");
	is_int(s.n[GRADCOMP_CACHE_PUBLISHED], 3000, "are listed");
	uint32_t kept;
	is_int(gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why), 0, "and cleared");
	printf("# in %.2f s\n", clock_now() - begin);
	is_int(system("test -z \"$(ls -A cache/*/)\""), 0, "nothing stays");
}

/* No space to write a lease or a note: named, and nothing half stays. */
static void full(void)
{
	close(area_fd);
	if (unshare(CLONE_NEWNS) < 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("cache", "cache", "tmpfs", 0, "size=256k,nr_inodes=40,mode=1777") < 0) {
		skip("needs the right to mount", "a small disk: %s", strerror(errno));
		return;
	}
	area_begin();
	must(mkdirat(area_fd, key_of(1), 0700), "copy");
	static char block[4096];
	int fd = openat(area_fd, "filler", O_WRONLY | O_CREAT, 0600);
	while (write(fd, block, sizeof block) > 0)
		;
	close(fd);
	is_int(cache_lease(area_fd, key_of(1), getpid(), "job 1.0", &why), GRADCOMP_ERR_IO, "a lease on a full disk");
	like(why.text, "No space left", "says so");
	is_int(gradcomp_cache_pin(NULL, key_of(1), &why), GRADCOMP_ERR_IO, "a pin too");
	ok(!is_there(in_area("%s.lease", key_of(1))), "and leaves nothing");
	struct seen s = list();
	is_int(s.n[GRADCOMP_CACHE_PUBLISHED], 1, "a copy whose size cannot be noted is listed");
	is_int(gradcomp_cache_evict(NULL, key_of(1), NULL, NULL, &why), 0, "and evicted");
	must(unlinkat(area_fd, "filler", 0), "filler");
	is_int(cache_lease(area_fd, key_of(1), getpid(), "job 1.0", &why), 0, "with room again a lease can be had");
	close(area_fd);
	must(umount("cache"), "umount");
}

int main(void)
{
	bench_begin_in("/dev/shm");
	listing();
	holding();
	verifying();
	leftovers();
	crowded();
	foreign();
	many();
	full();
	return done_testing();
}
