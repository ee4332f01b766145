/* 64 ranks on one machine: all join, every installed collective is right once, and all
 * leave. Arguments: as many ranks, on as many numbers, with this collective alone. How
 * it goes on from there is bench/scaling's to measure. */
#include "tests/support/pace.h"
#include "tests/support/process_ranks.h"

#include "tests/support/every_collective.h"
#include "tests/support/tap.h"

#include "job/job.h"

#include <sys/resource.h>

enum { MOST = 16 };
static int ranks = 64;
static uint64_t numbers;

static char names[MOST][64];
static int nnames;

typedef struct place {
	int failed[MOST];
	gradcomp_error err;
} place;

static int note(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	const struct gradcomp_collective_v1 *c = (const void *)info;
	const char *only = ctx;
	(void)path, (void)reason;
	if (only && strcmp(name, only))
		return 0;
	if (c && !(c->traits & GRADCOMP_TRAIT_CUDA) && nnames < MOST)
		snprintf(names[nnames++], sizeof names[0], "%s", name);
	return 0;
}

/* The collective's primitives once; 1 when something was wrong. */
static int run(gradcomp_job *job, const char *name, int rank, int P, gradcomp_error *err)
{
	const plugin *p;
	spec s;
	coll_ctx coll_ctx;
	int failed = 1;
	if (spec_resolve(job->config, GRADCOMP_KIND_COLLECTIVE, name, &p, &s, err))
		return 1;
	if (!group_coll_open(gradcomp_job_world(job), p, &s, &coll_ctx, err)) {
		every e = {.c = coll_ctx.collective,
		           .instance = coll_ctx.instance,
		           .host = &job->host,
		           .rank = rank,
		           .P = P,
		           .n = numbers};
		every_run(&e);
		e.coded = 1;
		failed = every_run(&e);
		*err = e.err;
		group_coll_close(&coll_ctx);
	}
	spec_clear(&s);
	return failed;
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	place *at = room;
	for (int k = 0; k < nnames; k++)
		at->failed[k] = run(job, names[k], rank, board->P, &at->err);
}

/* A connection to every rank is more than it may have. */
static void starved(gradcomp_job *job, int rank, process_board *board, void *room)
{
	const struct rlimit few = {40, 40};
	place *at = room;
	setrlimit(RLIMIT_NOFILE, &few);
	at->failed[0] = run(job, "direct", rank, board->P, &at->err) != 0;
}

static void test_starved(void)
{
	const char *settings[] = {"transport.timeout=60", "gradcomp.log=error", "transport.allow=tcp", NULL};
	enum { RANKS = 64 };
	double begin = process_now();
	process_board *b = run_processes(RANKS, settings, starved, sizeof(place));
	int failed = 0, named = 0;
	for (int r = 0; b && r < RANKS; r++) {
		const place *at = process_room(b, r);
		failed += at->failed[0];
		named += strstr(at->err.text, "has no descriptor left to reach rank") &&
		         strstr(at->err.text, "ulimit -n");
		if (!strstr(at->err.text, "ulimit -n"))
			printf("# rank %d: %s\n", r, at->err.text);
	}
	is_int(failed, RANKS, "without descriptors for all connections every rank fails");
	is_int(named, RANKS, "and says who had none left, and of what");
	ok(in_time(process_now() - begin, 10), "at once");
	if (b)
		end_processes(b);
}

int main(int argc, char **argv)
{
	char path[4200], exe[4096];
	ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);
	for (int up = 0; n > 0 && up < 3; up++)
		*strrchr(exe, '/') = 0;
	snprintf(path, sizeof path, "%s/lib/gradcomp", exe);
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	setenv("GRADCOMP_LOG", "error", 0);
	if (argc > 1)
		ranks = atoi(argv[1]);
	if (argc > 2)
		numbers = (uint64_t)atoll(argv[2]);
	const char *settings[] = {"transport.timeout=60", NULL};
	gradcomp_error err = {0};
	int found = gradcomp_plugin_each(GRADCOMP_KIND_COLLECTIVE, note, argc > 3 ? argv[3] : NULL, &err);
	ok(found >= 0 && nnames >= (argc > 3 ? 1 : 2), "collectives are installed%s%s", found < 0 ? ": " : "",
	   found < 0 ? err.text : "");
	process_board *b = run_processes(ranks, settings, body, sizeof(place));
	int left = 0;
	ok(b != NULL, "%d processes are started", ranks);
	if (!b)
		return done_testing();
	for (int r = 0; r < ranks; r++) {
		left += b->slot[r].left;
		if (!b->slot[r].left)
			printf("# rank %d: %s\n", r, b->slot[r].error.text);
	}
	is_int(left, ranks, "all join and leave");
	for (int k = 0; k < nnames; k++) {
		int failed = 0;
		for (int r = 0; r < ranks; r++) {
			const place *at = process_room(b, r);
			failed += at->failed[k];
			if (at->failed[k] && failed < 4)
				printf("# rank %d: %s\n", r, at->err.text);
		}
		ok(!failed, "%s on %d ranks", names[k], ranks);
	}
	end_processes(b);
	if (argc == 1)
		test_starved();
	return done_testing();
}
