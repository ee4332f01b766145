/* Memory after thousands of steps, and of reducers and coders that were made and freed, is what it was: for reducers of
 * every kind. Ranks are threads of this process, so what they hold together is counted. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdbool.h>

#include "gradcomp/coder.h"
#include "tests/support/small_model.h"

#define WARM 80  /* more than the report keeps rows of freed ones */
#define MADE 300 /* reducers made and freed */
#define STEPS 1500
#define ROOM 32768.0 /* bytes that may come and go: messages on their way, timers, what an allocator sets aside */

typedef struct kind {
	const char *what, *spec, *setting; /* NULL setting: none */
	uint32_t delay;
	bool apart;   /* ranks look as if on two nodes */
	bool chooses; /* the memory that it holds depends on what it is trying just then */
} kind;

static const kind kinds[] = {
	{.what = "none", .spec = "none"},
	{.what = "topk", .spec = "topk:density=0.1"},
	{.what = "powersgd", .spec = "powersgd:rank=2"},
	{.what = "dgc", .spec = "dgc:density=0.05"},
	{.what = "averages that come two steps late", .spec = "topk:density=0.1", .delay = 2},
	{.what = "auto", .spec = "auto:candidates=none/topk:density=0.1", .chooses = true},
	{.what = "two levels", .spec = "topk:density=0.1", .setting = "gradcomp.collective=hier", .apart = true},
	{.what = "a job that may outlive ranks", .spec = "topk:density=0.1", .setting = "gradcomp.on_failure=shrink"},
};

static double held(void)
{
	struct mallinfo2 m = mallinfo2();
	return (double)m.uordblks + (double)m.hblkhd;
}

static double by_steps, by_reducers;

static gradcomp_status make(const kind *k, gradcomp_job *job, int rank, int steps, gradcomp_error *err)
{
	const gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = k->spec, .bucket_bytes = 5000, .seed = 5, .delay = k->delay};
	gradcomp_status st;
	model m;
	st = model_open_with(&m, gradcomp_job_world(job), &o, err);
	for (int s = 0; !st && s < steps; s++)
		st = model_step(&m, rank, s, err);
	if (m.red)
		model_close(&m);
	return st;
}

static void body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	const kind *k = arg;
	const gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = k->spec, .bucket_bytes = 5000, .seed = 5, .delay = k->delay};
	gradcomp_status st;
	gradcomp_error err = {0};
	model m;
	(void)nranks;
	st = model_open_with(&m, gradcomp_job_world(job), &o, &err);
	for (int s = 0; !st && s < STEPS / 3 + STEPS; s++) {
		if (s == STEPS / 3) {
			ranks_wait();
			by_steps = rank ? by_steps : -held();
			ranks_wait();
		}
		st = model_step(&m, rank, s, &err);
	}
	if (!ok(!st, "%s: steps", k->what))
		printf("# %s\n", err.text);
	ranks_wait();
	by_steps += rank ? 0 : held();
	ranks_wait();
	if (m.red)
		model_close(&m);
	for (int i = 0; !st && i < WARM + MADE; i++) {
		if (i == WARM) {
			ranks_wait();
			by_reducers = rank ? by_reducers : -held();
			ranks_wait();
		}
		st = make(k, job, rank, i % 4, &err);
	}
	if (!ok(!st, "%s: reducers", k->what))
		printf("# %s\n", err.text);
	ranks_wait();
	by_reducers += rank ? 0 : held();
	ranks_wait();
}

static void coders(gradcomp_job *job, int rank, int nranks, void *arg)
{
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error err = {0};
	gradcomp_coder *coder;
	(void)nranks, (void)arg;
	for (int i = 0; !st && i < WARM + MADE; i++) {
		if (i == WARM) {
			ranks_wait();
			by_reducers = rank ? by_reducers : -held();
			ranks_wait();
		}
		st = gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4", NULL, &coder, &err);
		if (!st)
			gradcomp_coder_free(coder);
	}
	if (!ok(!st, "coders"))
		printf("# %s\n", err.text);
	ranks_wait();
	by_reducers += rank ? 0 : held();
	ranks_wait();
}

int main(void)
{
	static const int apart[] = {0, 1};
	/* An allocator that keeps freed memory for each thread would be counted. */
	if (!getenv("GLIBC_TUNABLES")) {
		char path[4096];
		ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

		path[n > 0 ? n : 0] = '\0';
		setenv("GLIBC_TUNABLES", "glibc.malloc.tcache_count=0", 1);
		execl(path, path, (char *)NULL);
	}
	model_seed();
	for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
		const kind *k = &kinds[i];
		const char *settings[] = {plugin_path_setting(), "gradcomp.log=error", k->setting, NULL};

		if (k->apart)
			ranks_on(apart);
		run_ranks(2, settings, body, (void *)(uintptr_t)k);
		ranks_on(NULL);
		ok(by_steps < ROOM * (k->chooses ? 16 : 1), "%s: %d steps leave %.0f bytes, %.1f each", k->what, STEPS,
		   by_steps, by_steps / STEPS);
		ok(by_reducers < ROOM, "%s: %d reducers made and freed leave %.0f bytes, %.1f each", k->what, MADE,
		   by_reducers, by_reducers / MADE);
	}
	run_ranks(2, (const char *[]){plugin_path_setting(), "gradcomp.log=error", NULL}, coders, NULL);
	ok(by_reducers < ROOM, "%d coders made and freed leave %.0f bytes, %.1f each", MADE, by_reducers,
	   by_reducers / MADE);
	return done_testing();
}
