/* Nodes that stage together, as processes of this machine: each has a cache of its own,
 * and its endpoint record says that it is a node of its own. */
#ifndef TESTS_SUPPORT_STAGE_GROUP_FIXTURE_H
#define TESTS_SUPPORT_STAGE_GROUP_FIXTURE_H

#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/stage_fixture.h"

#define NODES_MAX 256

typedef struct outcome {
	gradcomp_status status;
	gradcomp_error error;
	gradcomp_stage_result result;
	double seconds;
	int notices;
} outcome;

/* One rank does this in the middle; the others only stage. */
typedef int (*group_hook)(void *ctx, const gradcomp_stage_progress *p);

static gradcomp_stage_options group_options; /* source, flags, mode */
static int group_hook_rank = -1;
static group_hook group_hook_call;
static int group_odd_rank = -1; /* wants contents compared, too */
static int group_own_nodes = 1; /* each rank is a node */
static int group_rank;          /* this process's */
static outcome group_out[NODES_MAX];

static int group_progress(void *ctx, const gradcomp_stage_progress *p)
{
	outcome *o = ctx;
	o->notices += p->phase == GRADCOMP_STAGE_NOTICE;
	if (p->phase == GRADCOMP_STAGE_NOTICE && getenv("STAGE_GROUP_VERBOSE"))
		fprintf(stderr, "# rank %d: %s\n", group_rank, p->notice);
	return group_rank == group_hook_rank && group_hook_call ? group_hook_call(NULL, p) : 0;
}

static void group_body(gradcomp_job *job, int rank, process_board *b, void *room)
{
	char cache[128];
	outcome *o = room;
	gradcomp_stage_options options = group_options;
	(void)b;
	group_rank = rank;
	snprintf(cache, sizeof cache, "%s/cache%d", bench_dir, group_own_nodes ? rank : processes_nodes()[rank]);
	options.struct_size = sizeof options;
	options.cache_dir = cache;
	options.group = gradcomp_job_world(job);
	options.progress = group_progress;
	options.ctx = o;
	options.workers = 2;
	if (rank == group_odd_rank)
		options.flags ^= GRADCOMP_STAGE_CONTENT;
	o->result.struct_size = sizeof o->result;
	o->seconds = process_now();
	o->status = gradcomp_stage(&options, &o->result, &o->error);
	o->seconds = process_now() - o->seconds;
}

/* Stages on P nodes; what came of it is in group_out. False when a rank died. */
static int group_stage(int P)
{
	static int nodes[NODES_MAX];
	static const char *settings[] = {NULL, "transport.timeout=10", "gradcomp.log=error", NULL};
	int well = 1;
	settings[0] = plugin_path_setting();
	for (int r = 0; r < NODES_MAX; r++)
		nodes[r] = r;
	if (group_own_nodes)
		processes_on(nodes);
	process_board *board = run_processes(P, settings, group_body, sizeof(outcome));
	must(board ? 0 : -1, "processes");
	for (int r = 0; r < P; r++) {
		group_out[r] = *(outcome *)process_room(board, r);
		well &= WIFEXITED(board->slot[r].status) && !WEXITSTATUS(board->slot[r].status);
	}
	end_processes(board);
	return well;
}

/* The first failure, or 0; its text is in `why`. */
__attribute__((unused)) static gradcomp_status group_failed(int P)
{
	for (int r = 0; r < P; r++)
		if (group_out[r].status) {
			why = group_out[r].error;
			return group_out[r].status;
		}
	return GRADCOMP_OK;
}

/* Returns 1 when each node has all of src, with modes and times. */
__attribute__((unused)) static int group_whole(int P)
{
	static const char script[] =
		"list () { (cd \"$1\" && find . \\( -type d -printf '%p %m\\n' -o -type l -printf '%p %l\\n' -o -printf '%p %y %m %s %T@\\n' \\) | sort); }\n"
		"list src >list.src; list \"$1\" >list.copy; cmp list.src list.copy && diff -r --no-dereference src \"$1\"\n";
	put("compare", script);
	for (int r = 0; r < P; r++) {
		char command[4200];
		snprintf(command, sizeof command, "sh compare '%s' >&2", group_out[r].result.path);
		if (system(command))
			return 0;
	}
	return 1;
}

static void group_clear(void)
{
	must(system("chmod -R u+w cache[0-9]* 2>/dev/null; rm -rf cache[0-9]*; mkdir cache0 cache1 cache2 cache3 cache4 cache5"),
	     "caches");
}

__attribute__((unused)) static uint64_t group_sum(int P, size_t field)
{
	uint64_t sum = 0;
	for (int r = 0; r < P; r++)
		sum += *(const uint64_t *)((const char *)&group_out[r].result + field);
	return sum;
}
#define GROUP_SUM(P, field) group_sum(P, offsetof(gradcomp_stage_result, field))

__attribute__((unused)) static void put_random(const char *path, size_t n)
{
	static unsigned char block[1 << 16];
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	for (size_t i = 0; i < sizeof block; i++)
		block[i] = (unsigned char)rand();
	for (ssize_t w = 1; n && w > 0; n -= (size_t)w) {
		block[n % sizeof block]++;
		w = write(fd, block, n < sizeof block ? n : sizeof block);
	}
	must(fd < 0 || n ? -1 : close(fd), path);
}

#endif
