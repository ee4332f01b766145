/* Delayed averages under SGD: drained weights are equal on all ranks and those of averages that
 * were never late; convergence; the report. */
#include "tests/support/tuner_fixture.h"
#include "kinds/delay/delay_internal.h"
#include "tests/support/delayed_fixture.h"
#include "tests/support/tmpdir.h"

/* SGD on a model: its weights, what a step gives, what a drain gives. */
typedef struct sgd {
	gradcomp_reducer *red;
	values v, weights, corrections;
} sgd;

static int sgd_open(sgd *s, gradcomp_job *job, struct run *run, gradcomp_error *err)
{
	values_open(&s->v, run->dtype);
	values_open(&s->weights, run->dtype);
	values_open(&s->corrections, run->dtype);
	return open_delayed(&s->red, gradcomp_job_world(job), run->spec, run->dtype, run->delay, NULL, err) != 0;
}

/* w -= rate * by */
static void sgd_step(sgd *s, const values *by, float rate)
{
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			put(&s->weights, t, i, get(&s->weights, t, i) - rate * get(by, t, i));
}

/* How far the weights are from the mean over ranks and the sum over `steps` of own gradients,
 * times `rate`; and the end. */
static void sgd_close(sgd *s, struct run *run, int rank, int P, int steps, float rate, const gradcomp_error *err)
{
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++) {
			double want = 0;
			for (int n = 0; n < steps; n++)
				for (int r = 0; r < P; r++)
					want += rate * (double)own(run, r, n, t, i) / P;
			if (!(fabs(get(&s->weights, t, i) - want) <= run->worst[rank]))
				run->worst[rank] = fabs(get(&s->weights, t, i) - want);
		}
	run->fingerprint[rank] = values_fingerprint(&s->weights);
	if (err->status)
		fprintf(stderr, "# rank %d: %s\n", rank, err->text);
	gradcomp_reducer_free(s->red);
	values_close(&s->v);
	values_close(&s->weights);
	values_close(&s->corrections);
}

/* Drained twice: the weights are those of averages that were never late. */
static void drain_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	const float rate = 0.125f;
	sgd m;
	int bad = sgd_open(&m, job, run, &err);
	for (int s = 0; s < STEPS && !bad; s++) {
		bad = step(m.red, &m.v, rank, s, &err) != 0;
		sgd_step(&m, &m.v, rate);
		if (s == 3) {
			/* A caller may do it so: equal but for rounding. */
			bad |= gradcomp_reducer_drain(m.red, m.corrections.at, NULL, 0, &err) != 0;
			sgd_step(&m, &m.corrections, rate);
			for (int t = 0; t < T; t++)
				for (uint64_t i = 0; i < numel(t); i++)
					put(&m.corrections, t, i, 0);
		}
	}
	bad = bad || gradcomp_reducer_drain(m.red, m.corrections.at, m.weights.at, rate, &err);
	uint64_t mark = values_fingerprint(&m.corrections);
	bad = bad || gradcomp_reducer_drain(m.red, m.corrections.at, NULL, 0, &err) ||
	      mark != values_fingerprint(&m.corrections);
	run->failed[rank] = bad;
	sgd_close(&m, run, rank, P, STEPS, -rate, &err);
}

/* Makes up what steps of `auto` take: which candidate it comes to must not depend on how busy this machine is. Its
 * second one is the faster. */
static tuner *chooses(const sgd *m)
{
	static story made_up = {.seconds = {14e-3, 3e-3}, .exposed = 12.7e-3, .byte = 1e-6, .error = 0.5};
	tuner *c = (tuner *)((const delay *)m->red)->inner;
	tuner_hook_set((tuner_hook){.of = c, .measured = story_shows, .ctx = &made_up});
	return c;
}

/* Every rank pulls to a point of its own; together they go to the mean of the points. */
static void converge_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	sgd m;
	int bad = sgd_open(&m, job, run, &err);
	tuner *c = !bad && !strncmp(run->spec, "auto", 4) ? chooses(&m) : NULL;
	for (int s = 0; s < 200 && !bad; s++) {
		for (int t = T - 1; t >= 0; t--) {
			for (uint64_t i = 0; i < numel(t); i++)
				put(&m.v, t, i, get(&m.weights, t, i) - gradient(rank, 0, t, i));
			bad |= gradcomp_reducer_ready(m.red, (uint32_t)t, m.v.at[t], &err) != 0;
		}
		bad |= gradcomp_reducer_wait(m.red, &err) != 0;
		sgd_step(&m, &m.v, 0.1f);
	}
	run->failed[rank] = bad || gradcomp_reducer_drain(m.red, m.corrections.at, m.weights.at, 0.1, &err);
	if (c) {
		story_rest(c);
		run->failed[rank] |= c->parts.now.candidate != 1;
	}
	sgd_close(&m, run, rank, P, 1, 1, &err);
}

static void reported_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	sgd m;
	int bad = sgd_open(&m, job, run, &err);
	for (int s = 0; s < 3 && !bad; s++)
		bad = step(m.red, &m.v, rank, s, &err) != 0;
	sgd_close(&m, run, rank, P, 0, 0, &err);
	run->failed[rank] = bad;
}

/* The report's row is that of the reducer behind, with the delay. */
static void reported(const char *spec)
{
	struct run run = {.spec = spec, .delay = 2};
	char report[128], path[100], text[20000] = "";
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", report, NULL};
	snprintf(path, sizeof path, "%s/%s.json", tmpdir, spec);
	snprintf(report, sizeof report, "gradcomp.report=%s", path);
	run_ranks(2, settings, reported_body, &run);
	FILE *f = fopen(path, "r");
	if (f) {
		text[fread(text, 1, sizeof text - 1, f)] = 0;
		fclose(f);
	}
	ok(!run.failed[0] && !run.failed[1], "%s: three steps to report", spec);
	like(text, "\"delay\": 2", "it says how late averages came");
}

/* Rank 1 has nowhere to put its corrections, then no weights: the others do not wait for them. */
static void refused_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_status st;
	sgd m;
	int bad = sgd_open(&m, job, run, &err) || step(m.red, &m.v, rank, 0, &err);
	(void)P;
	st = gradcomp_reducer_drain(m.red, rank == 1 ? NULL : m.corrections.at, m.weights.at, 1, &err);
	bad |= st != (rank == 1 ? GRADCOMP_ERR_INVALID : GRADCOMP_ERR_PEER) ||
	       !strstr(err.text, "corrections is NULL") || (rank != 1 && !strstr(err.text, "rank 1 on "));
	st = gradcomp_reducer_drain(m.red, m.corrections.at, rank == 1 ? NULL : m.weights.at, 1, &err);
	bad |= st != GRADCOMP_ERR_MISMATCH || !strstr(err.text, "drains without weights, rank 0 with them");
	err = (gradcomp_error){0};
	run->failed[rank] = bad || gradcomp_reducer_drain(m.red, m.corrections.at, m.weights.at, 1, &err);
	sgd_close(&m, run, rank, P, 0, 0, &err);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	model_seed();
	for (uint32_t D = 1; D <= 3; D += 2)
		for (int P = 1; P <= 7; P += 2) {
			check(P, settings, "drained", (struct run){.spec = "none", .delay = D}, 2e-6, drain_body);
			check(P, settings, "drained", (struct run){.spec = "none", .dtype = GRADCOMP_F16, .delay = D},
			      5e-3, drain_body);
			check(P, settings, "drained", (struct run){.spec = "none", .dtype = GRADCOMP_BF16, .delay = D},
			      4e-2, drain_body);
			check(P, settings, "drained", (struct run){.spec = "powersgd:rank=2", .delay = D}, INFINITY,
			      drain_body);
		}
	for (uint32_t D = 0; D <= 4; D += 2) {
		check(3, settings, "converged", (struct run){.spec = "none", .delay = D}, 1e-5, converge_body);
		check(3, settings, "converged", (struct run){.spec = "topk:density=0.3", .delay = D}, 0.05,
		      converge_body);
	}
	/* Behind a delay `auto` chooses as it does elsewhere. */
	check(3, settings, "drained", (struct run){.spec = "auto", .delay = 2}, INFINITY, drain_body);
	check(2, settings, "converged", (struct run){.spec = "auto:candidates=none/topk:density=0.3", .delay = 1}, 0.05,
	      converge_body);
	struct run run = {.spec = "none", .delay = 1};
	run_ranks(3, settings, refused_body, &run);
	ok(!run.failed[0] && !run.failed[1] && !run.failed[2],
	   "a rank that cannot drain is named, and nobody waits for it");
	tmpdir_make("delay");
	reported("none");
	reported("auto");
	return done_testing();
}
