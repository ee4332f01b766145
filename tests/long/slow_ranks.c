/* Jobs of real processes, a processor each, of which one is held up by something: the report names it, and by what.
 * Without a cause it names nobody. Arguments: jobs without a cause (20), steps (60). For an idle machine. */
#include "gradcomp/dataset.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"

#include <sched.h>
#include <stdbool.h>

enum { P = 2, N = 20000, SAMPLES = 2 };

/* What is different at the slow rank. */
typedef struct cause {
	const char *name, *kind;
	double work;             /* times as much */
	int samples;             /* a step; 0: SAMPLES */
	int load_ms, load_every; /* a sample, and one of so many */
	int rest_ms, rest_every; /* a step, likewise */
	int neighbours;          /* processes that compute on its processor */
} cause;

static const cause causes[] = {
	{"a neighbour", "slow computing", .neighbours = 1},
	{"three neighbours", "slow computing", .neighbours = 3},
	{"it waits for something", "slow computing", .rest_ms = 20},
	{"it waits for less", "slow computing", .rest_ms = 8},
	{"twice the work", "unequal work", .work = 2},
	{"half as much again", "unequal work", .work = 1.5},
	{"twice the samples and the work", "unequal work", .work = 2, .samples = 2 * SAMPLES},
	{"a slow loader", "late data", .load_ms = 10},
	{"a loader that is a little slow", "late data", .load_ms = 4},
	{"a loader that stalls", "late data", .load_ms = 120, .load_every = 6},
	{"long pauses", "pauses", .rest_ms = 200, .rest_every = 4},
	{"pauses", "pauses", .rest_ms = 60, .rest_every = 3},
};

static const cause *now;
static int slow, steps;
static double rounds; /* of the arithmetic that takes 15 ms */
static volatile unsigned sink;

static void compute(double times)
{
	unsigned x = sink;
	for (double i = 0; i < times * rounds; i++)
		x = x * 1664525u + 1013904223u;
	sink = x;
}

static void calibrate(void)
{
	double begun;
	rounds = 1e6;
	do {
		rounds *= 1.5;
		begun = process_now();
		compute(1);
	} while (process_now() - begun < 0.015);
}

static void stay_on(int cpu)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(cpu, &set);
	sched_setaffinity(0, sizeof set, &set);
}

static void rest(int ms)
{
	usleep(1000u * (unsigned)ms);
}

static bool is_turn(int every, int i)
{
	return every < 2 || i % every == every - 1;
}

static gradcomp_status load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	static int loads;
	const int *rank = ctx;
	char *p = out->alloc(out, 8);
	(void)err;
	if (!p)
		return GRADCOMP_ERR_NOMEM;
	memcpy(p, &index, 8);
	if (*rank == slow && now && now->load_ms && is_turn(now->load_every, loads++))
		rest(now->load_ms);
	return GRADCOMP_OK;
}

static gradcomp_status take(gradcomp_dataset *ds, int n, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; i < n && !st; i++) {
		gradcomp_value_view v = {.struct_size = sizeof v};

		st = gradcomp_dataset_next(ds, &v, err);
		gradcomp_dataset_release(ds, &v);
	}
	return st;
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float g[N];
	const uint64_t dims[] = {N};
	const gradcomp_tensor_desc tensor = {"w", dims, 1, GRADCOMP_F32};
	const gradcomp_dataset_options o = {.struct_size = sizeof o,
	                                    .count = (uint64_t)P * 2 * SAMPLES * (uint64_t)steps,
	                                    .memory = 64 << 20,
	                                    .load = load,
	                                    .ctx = &rank};
	const cause none = {.work = 1}, *c = now && rank == slow ? now : &none;
	gradcomp_error *err = room;
	gradcomp_reducer *r = NULL;
	gradcomp_dataset *ds = NULL;
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), &tensor, 1, NULL, &r, err);
	(void)board;
	stay_on(rank);
	if (!st)
		st = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, err);
	for (int i = 0; !st && i < steps; i++) {
		st = take(ds, c->samples ? c->samples : SAMPLES, err);
		compute(c->work > 0 ? c->work : 1);
		if (c->rest_ms && is_turn(c->rest_every, i))
			rest(c->rest_ms);
		for (int k = 0; k < N; k++)
			g[k] = (float)(k % 7);
		st = st ? st : gradcomp_reducer_ready(r, 0, g, err);
		st = st ? st : gradcomp_reducer_wait(r, err);
	}
	gradcomp_reducer_free(r);
	if (ds && !st)
		gradcomp_dataset_free(ds, err);
}

/* Returns what the report says from "slowest" on; "": there is none. */
static const char *slowest(const char *path)
{
	static char text[40000];
	FILE *f = fopen(path, "r");
	size_t n = f ? fread(text, 1, sizeof text - 1, f) : 0;
	text[n] = 0;
	if (f)
		fclose(f);
	const char *at = strstr(text, "\"slowest\": ");
	return at ? at : "";
}

static const char *run(const cause *c)
{
	char path[300], setting[340];
	pid_t neighbour[8];
	int n = c ? c->neighbours : 0;
	snprintf(path, sizeof path, "%s/r.json", tmpdir);
	snprintf(setting, sizeof setting, "gradcomp.report=%s", path);
	const char *settings[] = {plugin_path_setting(), setting, "gradcomp.compressor=none", "gradcomp.log=error",
	                          NULL};
	unlink(path);
	now = c;
	for (int i = 0; i < n; i++) {
		neighbour[i] = fork();
		if (!neighbour[i]) {
			stay_on(slow);
			alarm(PROCESS_LIFE);
			for (;;)
				compute(1);
		}
	}
	process_board *b = run_processes(P, settings, body, sizeof(gradcomp_error));
	for (int i = 0; i < n; i++)
		if (neighbour[i] > 0) {
			kill(neighbour[i], SIGKILL);
			waitpid(neighbour[i], NULL, 0);
		}
	if (b)
		end_processes(b);
	return slowest(path);
}

int main(int argc, char **argv)
{
	int clean = argc > 1 ? atoi(argv[1]) : 20, named = 0, falsely = 0, all = sizeof causes / sizeof *causes;
	steps = argc > 2 ? atoi(argv[2]) : 60;
	tmpdir_make("slow");
	calibrate();
	for (int i = 0; i < all; i++) {
		char kind[60], rank[30];
		slow = i % P;
		const char *said = run(&causes[i]);
		snprintf(kind, sizeof kind, "\"kind\": \"%s\"", causes[i].kind);
		snprintf(rank, sizeof rank, "\"rank\": %d,", slow);
		bool right = strstr(said, kind) && strstr(said, rank);
		named += right;
		printf("# %s: %s: %.300s\n", causes[i].name, right ? "named" : "not named", said);
	}
	for (int i = 0; i < clean; i++) {
		const char *said = run(NULL);
		bool none = strstr(said, "\"slowest\": null") != NULL;
		falsely += !none;
		if (!none)
			printf("# without a cause: %.300s\n", said);
	}
	ok(10 * named >= 9 * all, "%d of %d causes are named within %d steps", named, all, steps);
	ok(!falsely, "%d of %d jobs without a cause name a rank", falsely, clean);
	return done_testing();
}
