/* Leases: what keeps a copy, what does not, and processes that lease, evict and publish
 * one key as fast as they can. */
#include <sched.h>
#include <sys/mman.h>

#include "tests/support/cache_fixture.h"
#include "tests/support/dir_entries.h"

static char text[CACHE_HOLDER_BYTES];

static int evict(int digit, unsigned flags)
{
	cache_entry item;
	must(cache_entry_read(area_fd, key_of(digit), &item, &why) ? -1 : 0, why.text);
	int result = item.name ? cache_evict(area_fd, &item, flags, text) : -2;
	cache_entry_free(&item);
	return result;
}

static void put_lease(int digit, const char *content)
{
	mkdir(in_area("%s.lease", key_of(digit)), 0700);
	put(in_area("%s.lease/planted", key_of(digit)), content);
}

static void living_and_dead(void)
{
	put_copy(key_of(1), 4, 0);
	pid_t pid = sleeper();
	is_int(cache_lease(area_fd, key_of(1), pid, "job 12.0", &why), 0, "a lease for a process");
	is_int(cache_lease(area_fd, key_of(1), pid, "job 12.0", &why), 0, "and once more");
	is_int(evict(1, CACHE_PINNED_TOO), 0, "a leased copy stays, forced or not");
	is_str(text, "leased by job 12.0", "and the holder is named");
	end_process(pid);
	is_int(evict(1, 0), 1, "when the process is gone it goes");
	ok(!is_there(key_of(1)) && !is_there(in_area("%s.lease", key_of(1))), "with its dead lease");
	is_int(system("test -z \"$(ls -A cache/*/)\""), 0, "and nothing stays");

	is_int(cache_lease(area_fd, key_of(1), pid, NULL, &why), GRADCOMP_ERR_INVALID, "no lease for a dead process");
	is_int(cache_lease(area_fd, key_of(1), -1, NULL, &why), GRADCOMP_ERR_INVALID, "nor for all of them");
	is_int(cache_lease(area_fd, key_of(1), 0, NULL, &why), 0, "none is wanted");
	is_int(system("test -z \"$(ls -A cache/*/)\""), 0, "none is made");
}

static void another_start(void)
{
	char boot[CACHE_BOOT_BYTES], line[400];
	put_copy(key_of(2), 4, 0);
	snprintf(line, sizeof line, "gradcomp-lease 1\npid %d start 1 boot %s space %llu\nholder old\n", getpid(),
	         cache_boot(boot), (unsigned long long)cache_pid_space());
	put_lease(2, line);
	is_int(evict(2, 0), 1, "a later process of the same number holds nothing");

	put_copy(key_of(2), 4, 0);
	snprintf(line, sizeof line,
	         "gradcomp-lease 1\npid %d start %llu boot 00000000-0000-0000-0000-000000000000 space %llu\nholder "
	         "old\n",
	         getpid(), (unsigned long long)cache_process_start(getpid()), (unsigned long long)cache_pid_space());
	put_lease(2, line);
	is_int(evict(2, 0), 1, "nor does one of another boot");

	put_copy(key_of(2), 4, 0);
	snprintf(line, sizeof line, "gradcomp-lease 1\npid 2000000000 start 7 boot %s space 1\nholder box\n", boot);
	put_lease(2, line);
	is_int(evict(2, 0), 0, "a process of another pid name space cannot be judged, and holds");

	snprintf(line, sizeof line, "gradcomp-lease 1\npid %d start 0 boot %s space %llu\nholder hidden\n", getpid(),
	         boot, (unsigned long long)cache_pid_space());
	put_lease(2, line);
	is_int(evict(2, 0), 0, "a process whose start was hidden holds while there is one of that number");
	empty_area();
}

static void jobs_and_pins(void)
{
	cache_lease_info job = {.name = "job-12", .holder = "job 12", .job = 12}, pin = {.name = "pin", .pin = true};
	put_copy(key_of(3), 4, 0);
	cache_boot(job.boot);
	is_int(cache_lease_write(area_fd, key_of(3), &job, &why), 0, "a lease of a job");
	is_int(evict(3, CACHE_PINNED_TOO), 0, "holds without any process");
	is_int(cache_lease_drop(area_fd, key_of(3), "job-12"), 0, "until it is dropped");
	is_int(cache_lease_drop(area_fd, key_of(3), "job-12"), 0, "twice is fine");
	ok(!is_there(in_area("%s.lease", key_of(3))), "the last one takes the directory with it");
	is_int(cache_lease_write(area_fd, key_of(3), &pin, &why), 0, "a pin");
	is_int(evict(3, 0), 0, "holds");
	is_str(text, "pinned", "and is named");
	is_int(evict(3, CACHE_PINNED_TOO), 1, "but not by force");
	empty_area();
}

/* A copy that many jobs have used. */
static void many_jobs(void)
{
	put_copy(key_of(3), 4, 0);
	int failures = 0;
	for (int i = 0; i < 100; i++) {
		pid_t pid = sleeper();
		failures += cache_lease(area_fd, key_of(3), pid, "a job", &why) != 0;
		end_process(pid);
	}
	is_int(failures, 0, "100 jobs lease one copy, one after the other");
	int n = entries(in_area("%s.lease", key_of(3)));
	ok(n > 0 && n < 40, "of which %d leases are left", n);
	/* A job that leased what then could not be staged. */
	pid_t pid = sleeper();
	is_int(cache_lease(area_fd, key_of(7), pid, "a job", &why), 0, "a lease on nothing");
	cache_sweep(area_fd, key_of(1));
	ok(is_there(in_area("%s.lease", key_of(7))), "stays while its process lives");
	end_process(pid);
	cache_sweep(area_fd, key_of(1));
	ok(!is_there(in_area("%s.lease", key_of(7))), "and not longer");
	empty_area();
}

/* An enemy, or a disk, may have put these there. None of it holds, hangs or is followed. */
static void rubbish(void)
{
	static const char *const bad[] = {
		"",
		"gradcomp-lease 1\n",
		"gradcomp-lease 2\npin\nholder x\n",
		"gradcomp-lease 1\npid 1 start 1\nholder x\n",
		"gradcomp-lease 1\npid 0 start 1 boot - space 1\nholder x\n",
		"gradcomp-lease 1\npid 99999999999999999999 start 1 boot - space 1\nholder x\n",
		"gradcomp-lease 1\npid -1 start 1 boot - space 1\nholder x\n",
		"gradcomp-lease 1\npid 4294967297 start 1 boot - space 1\nholder x\n",
		"gradcomp-lease 1\njob 0 boot -\nholder x\n",
		"gradcomp-lease 1\npin\nholder x",
		"gradcomp-lease 1\npin\nholder x\nmore\n",
		"gradcomp-lease 1\npin \nholder x\n",
	};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		put_copy(key_of(4), 4, 0);
		put_lease(4, bad[i]);
		is_int(evict(4, 0), 1, "rubbish %zu holds nothing", i);
	}
	put_copy(key_of(4), 4, 0);
	must(mkdir(in_area("%s.lease", key_of(4)), 0700), "lease");
	must(mkfifo(in_area("%s.lease/fifo", key_of(4)), 0600), "fifo");
	must(symlink("/etc/passwd", in_area("%s.lease/link", key_of(4))), "link");
	put(in_area("%s.lease/.half", key_of(4)), "gradcomp");
	char name[256];
	memset(name, 'n', 255);
	name[255] = 0;
	put(in_area("%s.lease/%s", key_of(4), name), "gradcomp-lease 1\npin\nholder x\n");
	is_int(evict(4, 0), 1, "a FIFO, a link, half a lease and one of a long name hold nothing");
	is_int(access("/etc/passwd", R_OK), 0, "and the link was not followed");

	put_copy(key_of(4), 4, 0);
	char line[400], boot[CACHE_BOOT_BYTES];
	snprintf(line, sizeof line, "gradcomp-lease 1\njob 7 boot %s\nholder evil\033[2J\n", cache_boot(boot));
	put_lease(4, line);
	is_int(evict(4, 0), 0, "a holder with control characters holds");
	is_str(text, "leased by evil\\x1b[2J", "and is shown without them");
	empty_area();

	put_copy(key_of(4), 4, 0);
	must(symlink("/tmp", in_area("%s.lease", key_of(4))), "link");
	is_int(evict(4, 0), 0, "a link in place of KEY.lease: the copy stays");
	like(text, "not ours", "and the reason is said");
	is_int(cache_lease(area_fd, key_of(4), getpid(), NULL, &why), GRADCOMP_ERR_IO, "a lease cannot be had there");
	empty_area();
}

#define TAKERS 4
#define EVICTORS 2
#define SECONDS 2

struct counts {
	atomic_int leases, kept, lost, published, evicted, refused, failed;
};

/* Does what gradcomp_stage() does around a lease, without the dataset. */
static void publish(struct counts *c, const char *key)
{
	char temp[80];
	int64_t holder;
	int lock;
	if (cache_lock_try(area_fd, key, &lock, &holder) != 1)
		return;
	snprintf(temp, sizeof temp, "%s.tmp", key);
	if (!is_there(key)) {
		put_copy(temp, 1, 0);
		atomic_fetch_add(renameat2(area_fd, temp, area_fd, key, RENAME_NOREPLACE) ? &c->failed : &c->published,
		                 1);
	}
	cache_lock_release(area_fd, key, lock);
}

static void take(struct counts *c, const char *key)
{
	cache_lease_info l = {.pid = getpid(), .start = cache_process_start(getpid()), .space = cache_pid_space()};
	char data[160];
	snprintf(l.name, sizeof l.name, "%d", getpid());
	cache_boot(l.boot);
	if (cache_lease_write(area_fd, key, &l, &why)) {
		printf("# lease: %s\n", why.text);
		atomic_fetch_add(&c->failed, 1);
		return;
	}
	atomic_fetch_add(&c->leases, 1);
	snprintf(data, sizeof data, "%s/data/file", key);
	if (is_there(key)) {
		/* Now it must stay. */
		bool there = true;
		for (int i = 0; i < 20 && there; i++) {
			there = is_there(data);
			sched_yield();
		}
		atomic_fetch_add(there ? &c->kept : &c->lost, 1);
	} else {
		publish(c, key);
	}
	if (cache_lease_drop(area_fd, key, l.name) < 0)
		atomic_fetch_add(&c->failed, 1);
}

static void evict_once(struct counts *c, const char *key)
{
	cache_entry item = {.kind = CACHE_PUBLISHED, .name = (char *)key};
	char reason[CACHE_HOLDER_BYTES];
	memcpy(item.key, key, STAGE_KEY_BYTES);
	bool was = is_there(key);
	int result = cache_evict(area_fd, &item, 0, reason);
	if (result < 0) {
		printf("# evict: %s\n", strerror(errno));
		atomic_fetch_add(&c->failed, 1);
	}
	if (was && result >= 0)
		atomic_fetch_add(result ? &c->evicted : &c->refused, 1);
}

static bool enough(struct counts *c)
{
	return atomic_load(&c->kept) > 10 && atomic_load(&c->evicted) > 10 && atomic_load(&c->refused) > 10;
}

static bool over(struct counts *c, double seconds)
{
	return seconds > SECONDS && (enough(c) || seconds > 60);
}

static void race(void)
{
	struct counts *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pids[TAKERS + EVICTORS];
	double begin = clock_now();
	for (int i = 0; i < TAKERS + EVICTORS; i++) {
		pids[i] = fork();
		must(pids[i], "fork");
		if (pids[i] == 0) {
			/* Pauses of all lengths, so that there are moments without a lease. */
			for (unsigned n = (unsigned)i; !over(c, clock_now() - begin); n += 7) {
				i < TAKERS ? take(c, key_of(5)) : evict_once(c, key_of(5));
				usleep(i < TAKERS ? n * 97 % 3000 : n * 31 % 300);
			}
			_exit(0);
		}
	}
	int bad = 0;
	for (int i = 0; i < TAKERS + EVICTORS; i++) {
		int status;
		bad += waitpid(pids[i], &status, 0) != pids[i] || status;
	}
	printf("# %d leases: %d kept a copy, %d copies published, %d evicted, %d times refused\n", c->leases, c->kept,
	       c->published, c->evicted, c->refused);
	is_int(bad + c->failed, 0, "%d processes lease, publish and drop, %d evict: no call fails", TAKERS, EVICTORS);
	is_int(c->lost, 0, "nothing leased is ever evicted");
	ok(enough(c), "and all of that happened");
	/* Nothing but a copy is left by the last ones. */
	evict_once(c, key_of(5));
	is_int(system("test -z \"$(ls -A cache/*/)\""), 0, "nothing stays of it");
	munmap(c, sizeof *c);
}

/* The process that evicts dies anywhere: its locks are released. */
static void killed_evictor(void)
{
	int left = 0;
	for (int i = 0; i < 60; i++) {
		if (!is_there(key_of(6)))
			put_copy(key_of(6), 1, 0);
		pid_t pid = fork();
		must(pid, "fork");
		if (pid == 0) {
			struct counts none = {0};
			for (;;) {
				evict_once(&none, key_of(6));
				publish(&none, key_of(6));
			}
		}
		usleep((useconds_t)(i * 137 % 3000));
		end_process(pid);
		left += is_there(key_of(6));
		if (cache_lease(area_fd, key_of(6), getpid(), NULL, &why)) {
			printf("# %s\n", why.text);
			left = -1;
			break;
		}
		char name[64];
		snprintf(name, sizeof name, "%d-%llu", getpid(), (unsigned long long)cache_process_start(getpid()));
		cache_lease_drop(area_fd, key_of(6), name);
		dirwalk_remove(area_fd, in_area("%s.tmp", key_of(6)));
	}
	ok(left >= 0, "after the death of an evictor a lease can be taken at once (60 times)");
	empty_area();
}

int main(void)
{
	bench_begin_in("/dev/shm");
	area_begin();
	living_and_dead();
	another_start();
	jobs_and_pins();
	many_jobs();
	rubbish();
	race();
	killed_evictor();
	return done_testing();
}
