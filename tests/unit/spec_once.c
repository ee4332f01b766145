/* A job parses the text of a compressor, a collective or a schedule once, however many reducers use it: this
 * program's spec_parse() stands before the library's and counts. */
#include "tests/support/small_model.h"

#include "config/spec.h"

#include <dlfcn.h>

enum { MOST = 64 };

static struct {
	pthread_mutex_t lock;
	char text[MOST][256];
	int times[MOST], n;
} parsed = {.lock = PTHREAD_MUTEX_INITIALIZER};

gradcomp_status spec_parse(const gradcomp_plugin_info *info, const char *text, spec *out, gradcomp_error *err)
{
	__typeof__(spec_parse) *real;
	int i = 0;
	*(void **)&real = dlsym(RTLD_NEXT, "spec_parse");
	pthread_mutex_lock(&parsed.lock);
	while (i < parsed.n && strcmp(parsed.text[i], text))
		i++;
	if (i < MOST) {
		snprintf(parsed.text[i], sizeof parsed.text[i], "%s", text);
		parsed.times[i]++;
		parsed.n += i == parsed.n;
	}
	pthread_mutex_unlock(&parsed.lock);
	return real(info, text, out, err);
}

static void is_parsed(const char *text, int times)
{
	int n = 0;
	for (int i = 0; i < parsed.n; i++)
		n += strcmp(parsed.text[i], text) ? 0 : parsed.times[i];
	ok(n == times, "'%s' is parsed %d times, as it should be %d", text, n, times);
}

typedef struct reducers {
	const char *compressor, *collective; /* that one of them names; the others' are the job's */
	int failed[MAX_RANKS];
} reducers;

/* Three reducers of the job's SPEC and two of another one; each makes a step. */
static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	reducers *t = arg;
	gradcomp_error err = {0};
	(void)P;
	for (int k = 0; k < 5 && !t->failed[rank]; k++) {
		model m;
		t->failed[rank] = model_open_over(&m, gradcomp_job_world(job), k < 3 ? NULL : t->compressor,
		                                  k < 3 ? NULL : t->collective, 0, &err) != 0;
		if (!t->failed[rank]) {
			t->failed[rank] = model_step(&m, rank, 0, &err) != 0;
			model_close(&m);
		}
	}
	if (t->failed[rank])
		printf("# rank %d: %s\n", rank, err.text);
}

static void run(const char *what, int P, const char *compressor, const char *collective, reducers *t)
{
	char asked[128], over[64];
	const char *settings[] = {
		plugin_path_setting(), "gradcomp.log=error", "gradcomp.schedule=wfbp", asked, over, NULL};
	int failed = 0;
	snprintf(asked, sizeof asked, "gradcomp.compressor=%s", compressor);
	snprintf(over, sizeof over, "gradcomp.collective=%s", collective);
	parsed.n = 0;
	memset(parsed.times, 0, sizeof parsed.times);
	run_ranks(P, settings, body, t);
	for (int r = 0; r < P; r++)
		failed |= t->failed[r];
	ok(!failed, "%s: reducers made and used", what);
}

int main(void)
{
	model_seed();

	reducers plain = {.compressor = "topk:density=0.2"};
	run("a compressor", 2, "topk:density=0.1", "ring:small=0", &plain);
	is_parsed("topk:density=0.1", 2);
	is_parsed("topk:density=0.2", 2);
	is_parsed("ring:small=0", 2);
	is_parsed("wfbp", 2 + 2); /* a setting counts, too */

	reducers two_levels = {.compressor = "topk:density=0.3"};
	run("in two levels", 4, "topk:density=0.2", "hier:ranks_per_node=2", &two_levels);
	is_parsed("topk:density=0.2", 4);
	is_parsed("topk:density=0.3", 4);
	is_parsed("hier:ranks_per_node=2", 4);

	/* A candidate by itself is the same SPEC. */
	reducers chosen = {.compressor = "topk:density=0.1"};
	run("auto", 2, "auto:candidates=none/topk:density=0.1", "ring:small=0", &chosen);
	is_parsed("auto:candidates=none/topk:density=0.1", 2);
	is_parsed("none", 2);
	is_parsed("topk:density=0.1", 2);
	is_parsed("ring:small=0", 2);
	is_parsed("wfbp", 2 + 2);
	return done_testing();
}
