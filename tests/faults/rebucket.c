/* Every allocation of a move of bucket boundaries fails in turn, on whichever rank it is: no
 * rank moves then, what each holds is as it was, and the job goes on. */
#include "tests/support/inject/inject.h"

#include "tests/support/residuals.h"
#include "reducer/bucketing/rebucket.h"

typedef struct show {
	const char *spec;
	model *models[MAX_RANKS];
	double before[MEMORIES], after[MEMORIES];
	gradcomp_status st[MAX_RANKS];
	int failed[MAX_RANKS], refused, done, kept;
	int last; /* after this attempt, for all ranks */
	uint64_t prints[MAX_RANKS];
	char text[MAX_RANKS][508];
} show;

static const uint32_t ends[2][3] = {{1, 4, T}, {2, 5, T}};

/* One move with allocation number n failing. */
static void attempt(show *s, model *m, int rank, int P, int n)
{
	uint32_t end[3], before = reducer_of(m->red)->eng.list.nbuckets;
	const bucket *was = reducer_of(m->red)->eng.list.buckets;
	step_plan plan = {.nbuckets = 3, .end = end};
	gradcomp_error err = {0};
	memcpy(end, ends[n % 2], sizeof end);
	ranks_wait();
	if (rank == 0) {
		char text[32];
		memories(s->models, P, s->before);
		snprintf(text, sizeof text, "alloc=%d", n);
		s->failed[0] |= inject_set(text) != 0;
		inject_on();
	}
	ranks_wait();
	s->st[rank] = reducer_rebucket(reducer_of(m->red), &plan, &err);
	ranks_wait();
	if (rank == 0) {
		inject_off();
		memories(s->models, P, s->after);
		s->done = !inject_seen().faults;
		s->failed[0] |= (s->st[0] && memcmp(s->before, s->after, sizeof s->before)) << 1;
		for (int r = 0; r < P; r++) {
			s->failed[0] |= (!s->st[r] != !s->st[0]) << 2;
			s->refused += s->st[r] == GRADCOMP_ERR_NOMEM;
		}
		s->kept += s->st[0] != GRADCOMP_OK;
		s->last = s->done || s->failed[0];
	}
	memcpy(s->text[rank], err.text, sizeof s->text[0]);
	s->failed[rank] |= (s->st[rank] && (reducer_of(m->red)->eng.list.buckets != was ||
	                                    reducer_of(m->red)->eng.list.nbuckets != before))
	                   << 3;
	ranks_wait();
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	show *s = arg;
	gradcomp_error err = {0};
	model m;
	if (model_open(&m, gradcomp_job_world(job), s->spec, 5000, &err)) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		s->failed[rank] = 1;
		return;
	}
	s->models[rank] = &m;
	for (int n = 1; n < 400 && !s->last; n++) {
		s->failed[rank] |= (model_step(&m, rank, n, &err) != 0) << 4;
		s->prints[rank] = mix(s->prints[rank] ^ fingerprint(&m));
		attempt(s, &m, rank, P, n);
	}
	s->failed[rank] |= (model_step(&m, rank, 500, &err) != 0) << 4;
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	ranks_wait();
	model_close(&m);
}

static void run(const char *spec, const char *collective, int P)
{
	char setting[100];
	const char *settings[] = {plugin_path_setting(), "transport.timeout=30", "gradcomp.log=error", setting, NULL};
	show *s = calloc(1, sizeof *s);
	int failed = 0, named = 0;
	snprintf(setting, sizeof setting, "gradcomp.collective=%s", collective);
	s->spec = spec;
	run_ranks(P, settings, body, s);
	for (int r = 0; r < P; r++) {
		failed |= s->failed[r] | (s->prints[r] != s->prints[0]) << 5;
		named |= s->st[r] != GRADCOMP_OK;
	}
	ok(!failed && s->done && !named && s->kept > 5 && s->refused == s->kept,
	   "%s over %s, %d ranks: %d allocations of a move fail, and no rank moves; then all do", spec, collective, P,
	   s->kept);
	if (failed || !s->done)
		printf("# failed %#x, %s\n", (unsigned)failed, s->text[0]);
	free(s);
}

int main(void)
{
	model_seed();
	run("topk:density=0.1", "ring", 2);
	run("onebit", "direct", 3);
	run("topk:density=0.1", "hier:ranks_per_node=2", 4);
	run("dgc:density=0.1", "hier:ranks_per_node=2", 3);
	return done_testing();
}
