/* Ranks with a reducer of auto whose measurements are the test's: what a step takes with
 * each candidate is a table, so that what is decided does not depend on this machine. */
#ifndef TESTS_SUPPORT_TUNER_FIXTURE_H
#define TESTS_SUPPORT_TUNER_FIXTURE_H

#include "tests/support/small_model.h"

#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"

#include <dlfcn.h>
#include <math.h>

typedef struct story {
	const char *spec;
	double seconds[TUNER_CANDIDATES]; /* a step with each candidate */
	double exposed;                   /* the base's */
	double error;                     /* the share that is held back, by whatever does */
	double byte, message;             /* seconds of an exchange: of a byte, and before the first */
	/* seconds before an exchange as small as a candidate's; 0: they are not told apart */
	double small_message;
	int steps;
	uint64_t bucket_bytes;
	/* Before step s, on every rank; may be NULL. */
	void (*before)(struct story *t, tuner *c, int rank, int s);
	void (*on_decision)(tuner *c, decision *v, uint8_t *of, void *ctx);
	int nan_step;    /* -1: none */
	double rounding; /* the share that is lost where fewer bits are sent */

	model *models[MAX_RANKS];
	int failed[MAX_RANKS];
	char text[MAX_RANKS][508];
	uint64_t prints[MAX_RANKS];
	uint32_t with[MAX_RANKS][1024]; /* the candidate of each step */
	double lost;                    /* from conservation */
	double sum_in[T][2048], sum_out[T][2048];
	char decision[256], switches[4096];
} story;

/* A test puts this in for what a tuner has measured, and for the decision that it is sent. */
typedef struct tuner_hook {
	const tuner *of;
	void (*measured)(tuner *c, void *ctx);
	void (*decided)(tuner *c, decision *v, uint8_t *of, void *ctx);
	void *ctx;
} tuner_hook;

static tuner_hook hooks[64];
static pthread_mutex_t hooks_lock = PTHREAD_MUTEX_INITIALIZER;

/* Called with the lock held: returns the hook of a tuner, or with NULL one that is free. */
static tuner_hook *hook_of(const tuner *c)
{
	int i = 0;
	while (hooks[i].of != c)
		if (++i == sizeof hooks / sizeof hooks[0])
			return NULL;
	return &hooks[i];
}

/* Once, while the tuner lives. */
static void tuner_hook_set(tuner_hook h)
{
	pthread_mutex_lock(&hooks_lock);
	*hook_of(NULL) = h;
	pthread_mutex_unlock(&hooks_lock);
}

static tuner_hook tuner_hook_get(const tuner *c)
{
	pthread_mutex_lock(&hooks_lock);
	tuner_hook *at = hook_of(c), h = at ? *at : (tuner_hook){0};
	pthread_mutex_unlock(&hooks_lock);
	return h;
}

/* These stand before the library's (interposed.list). */
void metrics_fill(tuner *c)
{
	__typeof__(metrics_fill) *real;
	tuner_hook h = tuner_hook_get(c);
	*(void **)&real = dlsym(RTLD_NEXT, "metrics_fill");
	real(c);
	if (h.measured)
		h.measured(c, h.ctx);
}

gradcomp_status policy_check_decision(const tuner *c, const decision *v, const uint8_t *of, gradcomp_error *err)
{
	__typeof__(policy_check_decision) *real;
	tuner_hook h = tuner_hook_get(c);
	*(void **)&real = dlsym(RTLD_NEXT, "policy_check_decision");
	if (h.decided)
		h.decided((tuner *)c, (decision *)v, (uint8_t *)of, h.ctx);
	return real(c, v, of, err);
}

/* Called once, when it is freed. */
void tuner_gpu_close(tuner *c)
{
	__typeof__(tuner_gpu_close) *real;
	pthread_mutex_lock(&hooks_lock);
	tuner_hook *at = hook_of(c);
	if (at)
		*at = (tuner_hook){0};
	pthread_mutex_unlock(&hooks_lock);
	*(void **)&real = dlsym(RTLD_NEXT, "tuner_gpu_close");
	real(c);
}

static tuner *front_of(const model *m)
{
	return (tuner *)m->red;
}

/* Every rank says what the story says, rank by rank a little more. */
static void story_shows(tuner *c, void *ctx)
{
	story *t = ctx;
	metrics *f = &c->choice.metrics;
	double slower = 1 + 0.001 * c->group->me;
	for (uint32_t k = 1, n = metrics_steps(c); k <= n; k++) {
		f->took[TUNER_WINDOW - k] = t->seconds[c->parts.now.candidate] * slower;
		f->exposed[TUNER_WINDOW - k] =
			(t->exposed + t->seconds[c->parts.now.candidate] - t->seconds[0]) * slower;
	}
	f->line[0] = t->message;
	f->line[1] = t->byte;
	f->fitted[0] = t->small_message;
	f->fitted[1] = t->small_message > 0 ? t->byte : 0;
	*f->error = c->config.candidate[c->parts.now.candidate].dense ? 0 : t->error;
	*f->forward = t->seconds[0] - t->exposed;
	memset(f->backward, 0, c->ntensors * sizeof *f->backward);
	for (uint32_t i = 0; i < 4 * f->ncandidates; i++)
		f->cost[i] = 0;
}

static double held_in(const partition *p, int t, uint64_t i)
{
	const subreducer *q = &p->sub[p->of[t]];
	const reducer *r = q->r;
	return r->eng.arrays.error ? r->eng.arrays.error[r->eng.layout.tensors[q->n - 1 - p->as[t]].offset + i] : 0;
}

static double held_by(const tuner *c, int t, uint64_t i)
{
	return held_in(c->parts.partition, t, i) + (c->parts.aside ? held_in(c->parts.aside, t, i) : 0) +
	       (c->parts.carry[t] ? c->parts.carry[t][i] : 0);
}

/* With all ranks standing still between two steps. */
static void story_weigh(story *t, int P)
{
	for (int k = 0; k < T; k++)
		for (uint64_t i = 0; i < numel(k); i++) {
			double held = 0;
			for (int r = 0; r < P; r++)
				held += held_by(front_of(t->models[r]), k, i);
			double off = fabs(t->sum_in[k][i] - P * t->sum_out[k][i] - held);
			if (!(off <= t->lost))
				t->lost = off;
		}
}

static void story_count(story *t, int P, int s)
{
	for (int k = 0; k < T; k++)
		for (uint64_t i = 0; i < numel(k); i++) {
			if (!isfinite(t->models[0]->grad[k][i]))
				continue;
			t->sum_out[k][i] += t->models[0]->grad[k][i];
			for (int r = 0; r < P; r++)
				t->sum_in[k][i] += s == t->nan_step ? 0 : gradient(r, s, k, i);
		}
}

/* A step whose gradients are zero, but for a NaN. */
static gradcomp_status nan_step(model *m, int rank, int P, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; k < T; k++)
		memset(m->grad[k], 0, numel(k) * sizeof(float));
	if (rank == P - 1)
		m->grad[4][7] = NAN;
	gradcomp_reducer_stats seen = {.struct_size = sizeof seen};
	for (int k = T - 1; !st && k >= 0; k--)
		st = gradcomp_reducer_ready(m->red, (uint32_t)k, m->grad[k], err);
	gradcomp_reducer_get_stats(m->red, &seen); /* while the step goes on */
	return st ? st : gradcomp_reducer_wait(m->red, err);
}

/* The check that follows a step is over. */
static void story_rest(tuner *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->turns.busy && !c->failed)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	pthread_mutex_unlock(&c->lock);
}

__attribute__((unused)) static void story_body(gradcomp_job *job, int rank, int P, void *arg)
{
	story *t = arg;
	gradcomp_error err = {0};
	model m;
	t->failed[rank] =
		model_open(&m, gradcomp_job_world(job), t->spec, t->bucket_bytes ? t->bucket_bytes : 1000, &err) != 0;
	if (t->failed[rank]) {
		memcpy(t->text[rank], err.text, sizeof err.text);
		return;
	}
	t->models[rank] = &m;
	tuner *c = front_of(&m);
	tuner_hook_set((tuner_hook){c, story_shows, t->on_decision, t});
	for (int s = 0; s < t->steps && !t->failed[rank]; s++) {
		if (t->before) {
			t->before(t, c, rank, s);
			ranks_wait();
		}
		t->with[rank][s] = c->parts.now.candidate;
		t->failed[rank] = (s == t->nan_step ? nan_step(&m, rank, P, &err) : model_step(&m, rank, s, &err)) != 0;
		story_rest(c);
		if (t->on_decision) /* ranks may fail apart */
			continue;
		ranks_wait();
		if (rank == 0 && !t->failed[0]) {
			story_count(t, P, s);
			story_weigh(t, P);
		}
		ranks_wait();
		if (s != t->nan_step)
			t->prints[rank] = mix(t->prints[rank] ^ fingerprint(&m));
	}
	if (rank == 0)
		for (uint32_t i = 0; i < c->choice.nchanges; i++)
			snprintf(t->switches + strlen(t->switches), sizeof t->switches - strlen(t->switches),
			         "%llu:%s:%s;", (unsigned long long)c->choice.change[i].step, c->choice.change[i].to,
			         tuner_reason_text(c->choice.change[i].reason));
	if (err.status)
		memcpy(t->text[rank], err.text, sizeof err.text);
	model_close(&m);
}

/* Steps on all ranks alike, nothing lost, the same bits. */
__attribute__((unused)) static void tell_story(const char *name, story *t, int P, const char *const *settings)
{
	int failed = 0, differ = 0;
	run_ranks(P, settings, story_body, t);
	for (int r = 0; r < P; r++) {
		failed |= t->failed[r];
		differ |= t->prints[r] != t->prints[0] || memcmp(t->with[r], t->with[0], sizeof t->with[0]);
	}
	ok(!failed && !differ && t->lost <= 5e-5 + t->rounding, "%s: ranks agree on bits and on decisions, %.1e lost",
	   name, t->lost);
	for (int r = 0; failed && r < P; r++)
		printf("# rank %d: %s\n", r, t->text[r]);
}

#endif
