/* Death of a node at the system calls with which it changes its cache, while another one
 * stages with it: the other is told, what is published on either is whole, and the next
 * run goes on with what is there. */
#include <sys/mman.h>

#include "tests/support/pace.h"
#include "tests/support/stage_group_fixture.h"
#include "tests/support/syscall_trace.h"

#define STRIDE 2 /* one of so many calls is fatal */

static steps *watched; /* in shared memory */
static char dying[128];

static int watch(void *ctx, const gradcomp_stage_progress *p)
{
	static int begun;
	(void)ctx, (void)p;
	if (!begun++ && !steps_watch(watched))
		_exit(9);
	return 0;
}

/* Every KEY in a cache is a whole copy. */
static bool only_whole(int node)
{
	char cache[128];
	snprintf(cache, sizeof cache, "%s/cache%d", bench_dir, node);
	gradcomp_stage_options o = {.struct_size = sizeof o,
	                            .source = "src",
	                            .cache_dir = cache,
	                            .flags = GRADCOMP_STAGE_VERIFY | GRADCOMP_STAGE_DRY_RUN};
	got.struct_size = sizeof got;
	if (gradcomp_stage(&o, &got, &why))
		return false;
	char path[256];
	struct stat st;
	snprintf(path, sizeof path, "cache%d/%u/%s", node, geteuid(), got.key);
	return got.cached || lstat(path, &st) < 0;
}

/* Node 1 is killed before its nth call; 0: it lives. Whether it was. */
static bool dies_at(int n)
{
	*watched = (steps){.below = dying, .fatal = n};
	group_clear();
	group_hook_rank = 1;
	group_hook_call = watch;
	bool died = !group_stage(2);
	group_hook_call = NULL;
	return died;
}

int main(void)
{
	int wrong = 0, told = 0, times = 0, both = 0;
	uint64_t resumed = 0;
	bench_begin_in("/dev/shm");
	group_options.source = "src";
	must(system("mkdir -p src/d/e && echo one >src/a && echo two >src/d/b && ln src/a src/d/c && ln -s ../a "
	            "src/d/l && "
	            "truncate -s 1500000 src/h && echo hole >>src/h")
	             ? -1
	             : 0,
	     "source");
	put_random("src/d/e/large", 2500000);
	watched = mmap(NULL, sizeof *watched, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	must(watched == MAP_FAILED ? -1 : 0, "memory");
	snprintf(dying, sizeof dying, "%s/cache1", bench_dir);
	if (dies_at(0)) {
		skip("needs the right to trace", "death of a node at every step");
		return done_testing();
	}
	int calls = watched->n;
	is_int(group_failed(2), 0, "a node that is watched and lives");
	for (int n = 1; n <= calls; n += STRIDE) {
		/* Threads share the calls, so there may be one less this time. */
		if (!dies_at(n))
			continue;
		const char *bad = NULL;
		times++;
		told += group_out[0].status == GRADCOMP_ERR_PEER;
		both += !group_out[0].status;
		if (group_out[0].status && group_out[0].status != GRADCOMP_ERR_PEER)
			bad = group_out[0].error.text;
		else if (group_out[0].status && !strstr(group_out[0].error.text, "rank 1"))
			bad = "it is not told who";
		else if (!in_time(group_out[0].seconds, 10))
			bad = "it is told late";
		else if (!only_whole(0) || !only_whole(1))
			bad = "half a copy is published";
		else if (!group_stage(2) || group_failed(2))
			bad = why.text;
		else if (!group_whole(2) || in_caches("cache?", ".tmp") > both || in_caches("cache?", ".gone"))
			bad = "the copy is wrong, or half a one stays";
		if (bad)
			printf("# killed at call %d, %s %s %s: %s\n", n, watched->last.call, watched->last.path,
			       watched->last.other, bad);
		wrong += bad != NULL;
		resumed += GROUP_SUM(2, resumed);
	}
	tap_tried((unsigned long)times, "deaths at a system call");
	ok(times > 10 && told > times / 2,
	   "of %d calls %d were the last: the other node is told %d times, done %d times", calls, times, told, both);
	is_int(wrong, 0, "by name and soon; what is published is whole, and the next run succeeds");
	ok(resumed > 0, "and goes on with what was there: %llu bytes in all", (unsigned long long)resumed);
	return done_testing();
}
