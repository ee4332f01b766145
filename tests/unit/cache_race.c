/* Processes that stage four datasets as fast as they can into a cache that holds two of
 * them: what gradcomp_stage() handed out to one that leases stays whole until he lets go,
 * and who gets nothing is told that there is no room. */
#include <sys/mman.h>

#include "tests/support/cache_fixture.h"
#include "io/cache/manage.h"

#define STAGERS 5
#define SECONDS 4

struct counts {
	atomic_int staged, hits, refused, wrong, failed, cleanups;
};

static void let_go(void)
{
	char name[64];
	snprintf(name, sizeof name, "%d-%llu", getpid(), (unsigned long long)cache_process_start(getpid()));
	cache_lease_drop(area_fd, got.key, name);
}

static void use(struct counts *c, int number)
{
	char source[16], want[16];
	snprintf(source, sizeof source, "src%d", number);
	snprintf(want, sizeof want, "number %d\n", number);
	gradcomp_stage_options o = {
		.struct_size = sizeof o, .source = source, .workers = 1, .hold_pid = getpid(), .holder = "a racer"};
	got.struct_size = sizeof got;
	gradcomp_status st = gradcomp_stage(&o, &got, &why);
	if (st) {
		bool room = strstr(why.text, "no space in the cache") != NULL;
		if (!room)
			printf("# %s\n", why.text);
		atomic_fetch_add(room ? &c->refused : &c->failed, 1);
		let_go();
		return;
	}
	atomic_fetch_add(got.cached ? &c->hits : &c->staged, 1);
	/* Time enough for others to want the room. */
	for (int i = 0; i < 5; i++) {
		if (strcmp(copied("name"), want) || copied_stat("d/block").st_size != 200 << 10) {
			printf("# %s is gone\n", got.path);
			atomic_fetch_add(&c->wrong, 1);
			break;
		}
		usleep((useconds_t)(getpid() * 7 + i * 1000) % 4000);
	}
	let_go();
}

static void clean_up(struct counts *c, int turn)
{
	uint32_t kept;
	gradcomp_status st = turn % 8 ? gradcomp_cache_gc(NULL, 0, NULL, NULL, &why)
	                              : gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why);
	if (st) {
		printf("# cleaning up: %s\n", why.text);
		atomic_fetch_add(&c->failed, 1);
	}
	atomic_fetch_add(&c->cleanups, 1);
	usleep(30000);
}

static bool enough(struct counts *c)
{
	return atomic_load(&c->staged) > 8 && atomic_load(&c->hits) > 0 && atomic_load(&c->cleanups) > 4;
}

static bool over(struct counts *c, double seconds)
{
	return seconds > SECONDS && (enough(c) || seconds > 60);
}

int main(void)
{
	static const struct counts zero;
	static char block[200 << 10];
	pid_t pids[STAGERS + 1];
	int bad = 0;
	bench_begin_in("/dev/shm");
	area_begin();
	for (int i = 0; i < 4; i++) {
		char path[64], text[32];
		snprintf(path, sizeof path, "mkdir -p src%d/d", i);
		must(system(path) ? -1 : 0, path);
		snprintf(path, sizeof path, "src%d/name", i);
		snprintf(text, sizeof text, "number %d\n", i);
		put(path, text);
		snprintf(path, sizeof path, "src%d/d/block", i);
		memset(block, 'a' + i, sizeof block);
		int fd = open(path, O_WRONLY | O_CREAT, 0644);
		must(write(fd, block, sizeof block) == sizeof block ? 0 : -1, path);
		close(fd);
	}
	setenv("GRADCOMP_STAGE_CACHE_BYTES", "550K", 1);
	setenv("GRADCOMP_STAGE_EVICT", "100,100", 1);
	struct counts *c = mmap(NULL, sizeof *c, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	*c = zero;
	double begin = clock_now();
	for (int i = 0; i <= STAGERS; i++) {
		must(pids[i] = fork(), "fork");
		if (pids[i] == 0) {
			for (int turn = 0; !over(c, clock_now() - begin); turn++)
				i < STAGERS ? use(c, (i * 5 + turn * 3) % 4) : clean_up(c, turn);
			fflush(stdout);
			_exit(0);
		}
	}
	for (int i = 0; i <= STAGERS; i++) {
		int status;
		bad += waitpid(pids[i], &status, 0) != pids[i] || status;
	}
	printf("# %d staged, %d hits, %d without room, %d times cleaned up\n", c->staged, c->hits, c->refused,
	       c->cleanups);
	is_int(bad, 0, "%d processes stage four datasets where two fit, one cleans up", STAGERS);
	is_int(c->failed, 0, "nothing fails but for want of room");
	is_int(c->wrong, 0, "and what is leased stays whole");
	ok(enough(c), "much of it happened");
	uint32_t kept;
	is_int(gradcomp_cache_clear(NULL, NULL, NULL, &kept, &why), 0, "in the end");
	is_int(system("test -z \"$(ls -A cache/*/)\""), 0, "all can be cleared");
	munmap(c, sizeof *c);
	return done_testing();
}
