/* Real ranks, of which one is slow: rank 0's report has the times of all, and names that one and why. */
#include "gradcomp/dataset.h"
#include "tests/support/pace.h"
#include "tests/support/process_ranks.h"
#include "tests/support/slurp.h"
#include "tests/support/thread_ranks.h"
#include "tests/support/tmpdir.h"

enum { P = 4, N = 1000, STEPS = 24, SLOW = 3, USUAL_MS = 10, SLOW_MS = 60 };
typedef enum cause { NOTHING, COMPUTES_SLOWLY, LOADS_SLOWLY, CAUSES } cause;

typedef struct seen {
	int steps;
	gradcomp_error err;
} seen;

static cause why;

static void rest(int ms)
{
	usleep(1000u * (unsigned)ms);
}

static gradcomp_status load(void *ctx, uint64_t index, gradcomp_value_buffer *out, gradcomp_error *err)
{
	const int *rank = ctx;
	char *p = out->alloc(out, 8);
	(void)err;
	if (!p)
		return GRADCOMP_ERR_NOMEM;
	memcpy(p, &index, 8);
	if (*rank == SLOW)
		rest(SLOW_MS - USUAL_MS);
	return GRADCOMP_OK;
}

static gradcomp_status take_sample(gradcomp_dataset *ds, gradcomp_error *err)
{
	gradcomp_value_view v = {.struct_size = sizeof v};
	gradcomp_status st = gradcomp_dataset_next(ds, &v, err);
	gradcomp_dataset_release(ds, &v);
	return st;
}

static void body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	static float g[N];
	const uint64_t dims[] = {N};
	const gradcomp_tensor_desc tensor = {"w", dims, 1, GRADCOMP_F32};
	const gradcomp_dataset_options o = {
		.struct_size = sizeof o, .count = (uint64_t)P * STEPS, .memory = 64 << 20, .load = load, .ctx = &rank};
	seen *s = room;
	gradcomp_error *err = &s->err;
	gradcomp_reducer *r = NULL;
	gradcomp_dataset *ds = NULL;
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), &tensor, 1, NULL, &r, err);
	(void)board;
	if (!st && why == LOADS_SLOWLY)
		st = gradcomp_dataset_create(gradcomp_job_world(job), &o, &ds, err);
	for (int i = 0; !st && i < STEPS; i++) {
		if (ds)
			st = take_sample(ds, err);
		rest(why == COMPUTES_SLOWLY && rank == SLOW ? SLOW_MS : USUAL_MS);
		for (int k = 0; k < N; k++)
			g[k] = (float)(k % 7);
		st = st ? st : gradcomp_reducer_ready(r, 0, g, err);
		st = st ? st : gradcomp_reducer_wait(r, err);
		s->steps += !st;
	}
	gradcomp_reducer_free(r);
	if (ds && !st)
		gradcomp_dataset_free(ds, err);
}

/* Checks the row of each rank. */
static void rows(const char *text, const char *title)
{
	const char *at = strstr(text, "\"times\": ["), *end = strstr(text, "\"slowest\": ");
	int n = 0;
	while (at && end) {
		double step = 0, loading = 0, waiting = 0;
		long steps = 0;
		at = strstr(at + 1, "\"steps\": ");
		if (!at || at > end)
			break;
		const char *load_at = strstr(at, "\"loading_s\": "), *wait_at = strstr(at, "\"waiting_s\": ");
		bool read = load_at && wait_at && sscanf(at, "\"steps\": %ld, \"step_s\": %lf", &steps, &step) == 2 &&
		            sscanf(load_at, "\"loading_s\": %lf", &loading) == 1 &&
		            sscanf(wait_at, "\"waiting_s\": %lf", &waiting) == 1;

		ok(read && steps >= STEPS - 6 && steps < STEPS, "%s: rank %d: %ld of %d steps count", title, n, steps,
		   STEPS);
		ok(read && step >= 1e-3 * (why ? SLOW_MS : USUAL_MS), "%s: rank %d: a step of %.1f ms", title, n,
		   step * 1e3);
		if (why && n != SLOW)
			ok(waiting > 0.5e-3 * (SLOW_MS - USUAL_MS), "%s: rank %d waits, %.1f ms", title, n,
			   waiting * 1e3);
		if (why == LOADS_SLOWLY)
			ok(n == SLOW ? loading >= 1e-3 * (SLOW_MS - USUAL_MS) : loading < 0.5e-3 * (SLOW_MS - USUAL_MS),
			   "%s: rank %d loads for %.1f ms", title, n, loading * 1e3);
		n++;
	}
	is_int(n, P, "%s: each rank has a row", title);
}

static void job_of(cause what, const char *kind, const char *title)
{
	char path[300], setting[340], named[80];
	snprintf(path, sizeof path, "%s/%d.json", tmpdir, what);
	snprintf(setting, sizeof setting, "gradcomp.report=%s", path);
	const char *settings[] = {plugin_path_setting(), setting, "gradcomp.compressor=none", NULL};
	why = what;
	process_board *b = run_processes(P, settings, body, sizeof(seen));
	if (!b) {
		skip("processes cannot be started", "%s", title);
		return;
	}
	for (int r = 0; r < P; r++) {
		const seen *s = process_room(b, r);

		ok(b->slot[r].left && s->steps == STEPS, "%s: rank %d has done %d steps: %s", title, r, s->steps,
		   s->err.text);
	}
	char *text = slurp(path, NULL), *slowest = strstr(text, "\"slowest\": ");
	rows(text, title);
	printf("# %s: %.200s\n", title, slowest ? slowest : "nothing");
	if (kind) {
		snprintf(named, sizeof named, "\"kind\": \"%s\"", kind);
		like(slowest ? slowest : "", named, title);
		snprintf(named, sizeof named, "\"rank\": %d", SLOW);
		like(slowest ? slowest : "", named, title);
		like(slowest ? slowest : "", "\"advice\": \"", title);
	}
	free(text);
	end_processes(b);
}

int main(void)
{
	tmpdir_make("times");
	job_of(NOTHING, NULL, "all are alike");
	job_of(COMPUTES_SLOWLY, "slow computing", "one computes slowly");
	job_of(LOADS_SLOWLY, "late data", "one waits for its data");
	return done_testing();
}
