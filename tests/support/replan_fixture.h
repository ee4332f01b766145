/* Tests of measured plans share this. Ranks are threads with real reducers; the times they measure are put in the
 * place of the real ones, so that a busy machine is not a different test: of each phase only the last step is as it
 * was. */
#ifndef TESTS_SUPPORT_REPLAN_FIXTURE_H
#define TESTS_SUPPORT_REPLAN_FIXTURE_H

#include "reducer/bucketing/profile_internal.h"
#include "tests/support/thread_ranks.h"
#include "reducer/bucketing/replan_internal.h"

#include <math.h>

enum { N = 24, STEPS = 60 };

typedef struct times {
	double a, b;     /* seconds of a round and of a byte of an exchange */
	double backward; /* each tensor's; every sixth takes ten times as much */
	/* A share of the step, in turns. A phase's first step, which is dropped, has a mean one, so that the
	 * quartiles are those of the others wherever the one step lies that is as it was. */
	double jitter;
	int together;           /* tensors that come at once */
	double slow[MAX_RANKS]; /* 0: as the others */
	uint32_t favours;       /* other numbers of messages than this make a step 5 ms longer; 0: none */
	int wild;               /* exchanges are on no line */
	double knee, steep;     /* a byte beyond so many of an exchange takes so much longer */
} times;

typedef struct job_run {
	const char *compressor, *schedule;
	int steps, drift_at;
	times t, later;
	/* After step s, between two steps, when the ranks have talked; may be NULL. */
	void (*between)(struct job_run *run, gradcomp_reducer *r, int rank, int s);
	/* By rank, at the end. */
	uint32_t nbuckets[MAX_RANKS], ends[MAX_RANKS][N], plans[MAX_RANKS];
	uint32_t after[MAX_RANKS]; /* plans when times changed */
	uint64_t print[MAX_RANKS];
	double predicted[MAX_RANKS], fixed[MAX_RANKS];
	int failed[MAX_RANKS], settled[MAX_RANKS];
	double off[MAX_RANKS];
	char reason[200], name[48];
	profile_summary summary;
	double backward[N];
} job_run;

__attribute__((unused)) static uint64_t numel_of(int i)
{
	return 64 + (uint64_t)(i * 97 % 13) * 150;
}

__attribute__((unused)) static float value(int rank, int step, int i, uint64_t k)
{
	return (float)((rank + 1) * (step % 7 + 1) * (i + 1) % 11) + (float)(k % 5) * 0.25f;
}

/* When tensor i of the layout comes. */
__attribute__((unused)) static double comes(const times *t, uint32_t i)
{
	return t->backward * (i + 1 + 9 * ((i + 1) / 6));
}

/* Pretends that steps have taken this: of all that are kept and complete. */
__attribute__((unused)) static void pretend(gradcomp_reducer *r, const times *t, int rank)
{
	profile *p = reducer_of(r)->profile;
	double own = t->slow[rank] > 0 ? t->slow[rank] : 1;
	pthread_mutex_lock(&reducer_of(r)->lock);
	for (uint64_t at = profile_oldest(p); at < p->at; at++) {
		profile_row *row = &p->rows[at % (p->kept + 1)];
		double now = row->first = 1000 + (double)at, noise = t->jitter * (double)((at + 1) % 3) + 1;
		row->gap = 4e-3 * own;
		for (uint32_t i = 0; i < p->ntensors; i++) {
			uint32_t last = t->together ? i - i % (uint32_t)t->together + (uint32_t)t->together - 1 : i;
			row->ready[i] = now + comes(t, last) * own * noise;
		}
		row->last = row->ready[p->ntensors - 1];
		row->step = row->gap + (row->last - row->first) + 1e-3;
		if (t->favours && row->nbuckets != t->favours)
			row->step += 5e-3;
		for (uint32_t b = 0; b < row->nbuckets; b++) {
			profile_bucket *in = &row->buckets[b];
			/* Whoever is early waits: each exchange is short on one rank alone. */
			double wait =
				(at + b) % (uint64_t)reducer_of(r)->eng.layout.nranks == (uint64_t)rank ? 0 : 3e-3;
			double longer = t->wild ? pow(10, (double)((at + b) % 3)) : 1;
			double beyond = fmax(0, in->bytes - t->knee) * t->steep;
			in->exchange = (t->a * in->rounds + t->b * in->bytes + beyond) * longer + wait;
			in->reduce = in->reduce > 0 ? 1e-6 : 0;
			in->spread = in->spread > 0 ? 1e-6 : 0;
			for (int k = 0; k < COMPUTE_KINDS; k++)
				in->compute[k] = in->compute[k] > 0 ? 1e-6f : 0;
		}
	}
	pthread_mutex_unlock(&reducer_of(r)->lock);
}

__attribute__((unused)) static gradcomp_status step(gradcomp_reducer *r, int rank, int s, float **grad,
                                                    gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int i = 0; i < N; i++)
		for (uint64_t k = 0; k < numel_of(i); k++)
			grad[i][k] = value(rank, s, i, k);
	for (int i = N; i-- > 0 && !st;)
		st = gradcomp_reducer_ready(r, (uint32_t)i, grad[i], err);
	return st ? st : gradcomp_reducer_wait(r, err);
}

__attribute__((unused)) static gradcomp_status open_reducer(gradcomp_group *g, const char *compressor,
                                                            const char *schedule, gradcomp_reducer **out,
                                                            gradcomp_error *err)
{
	gradcomp_tensor_desc desc[N];
	uint64_t dims[N];
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = compressor, .schedule = schedule};
	for (int i = 0; i < N; i++) {
		dims[i] = numel_of(i);
		desc[i] = (gradcomp_tensor_desc){.dims = &dims[i], .ndim = 1};
	}
	return gradcomp_reducer_create(g, desc, N, &o, out, err);
}

__attribute__((unused)) static void keep_result(job_run *run, gradcomp_reducer *r, int rank)
{
	struct replan *q = reducer_of(r)->replan;
	pthread_mutex_lock(&reducer_of(r)->lock);
	run_step_replan_settle(reducer_of(r));
	run->nbuckets[rank] = reducer_of(r)->eng.list.nbuckets;
	for (uint32_t b = 0; b < reducer_of(r)->eng.list.nbuckets; b++)
		run->ends[rank][b] =
			reducer_of(r)->eng.list.buckets[b].pub.first + reducer_of(r)->eng.list.buckets[b].pub.ntensors;
	run->plans[rank] = q->plans;
	run->settled[rank] = q->settled;
	run->predicted[rank] = q->last.plan.predicted;
	run->fixed[rank] = q->last.fixed;
	if (rank == 0) {
		memcpy(run->reason, q->reason, sizeof run->reason);
		memcpy(run->name, q->name, sizeof run->name);
	}
	pthread_mutex_unlock(&reducer_of(r)->lock);
	if (rank == 0) {
		run->summary = *profile_get(reducer_of(r));
		memcpy(run->backward, run->summary.backward, sizeof run->backward);
	}
}

static const char *settings[8] = {"gradcomp.log=info", NULL};

static const times usual = {.a = 2e-3, .b = 1e-9, .backward = 0.2e-3};

__attribute__((unused)) static void measured_body(gradcomp_job *job, int rank, int P, void *arg)
{
	job_run *run = arg;
	gradcomp_error err = {0};
	gradcomp_reducer *r;
	float *grad[N];
	if (open_reducer(gradcomp_job_world(job), run->compressor, run->schedule, &r, &err)) {
		printf("# rank %d: %s\n", rank, err.text);
		run->failed[rank] = 1;
		return;
	}
	for (int i = 0; i < N; i++)
		grad[i] = calloc(numel_of(i), sizeof(float));
	for (int s = 0; s < run->steps && !run->failed[rank]; s++) {
		run->failed[rank] = step(r, rank, s, grad, &err) != 0;
		if (run->failed[rank])
			printf("# rank %d step %d: %s\n", rank, s, err.text);
		for (int i = 0; i < N; i++)
			for (uint64_t k = 0; k < numel_of(i); k++) {
				uint32_t bits;
				double want = 0;
				for (int p = 0; p < P; p++)
					want += (double)value(p, s, i, k) / P;
				run->off[rank] = fmax(run->off[rank], fabs((double)grad[i][k] - want));
				memcpy(&bits, &grad[i][k], sizeof bits);
				run->print[rank] = id_mix(run->print[rank], bits);
			}
		/* Not while the ranks replan. */
		pthread_mutex_lock(&reducer_of(r)->lock);
		run_step_replan_settle(reducer_of(r));
		if (s == run->drift_at)
			run->after[rank] = reducer_of(r)->replan->plans;
		pthread_mutex_unlock(&reducer_of(r)->lock);
		if (run->between)
			run->between(run, r, rank, s);
		pretend(r, run->drift_at && s >= run->drift_at ? &run->later : &run->t, rank);
	}
	keep_result(run, r, rank);
	gradcomp_reducer_free(r);
	for (int i = 0; i < N; i++)
		free(grad[i]);
}

__attribute__((unused)) static job_run *run_more(int P, const char *schedule, int steps, const times *t, int drift_at,
                                                 const times *later)
{
	static job_run result;
	result = (job_run){.compressor = "none",
	                   .schedule = schedule,
	                   .steps = steps,
	                   .t = *t,
	                   .drift_at = drift_at,
	                   .later = later ? *later : *t};
	run_ranks(P, settings, measured_body, &result);
	return &result;
}

__attribute__((unused)) static job_run *run(int P, const char *schedule, int steps, const times *t)
{
	return run_more(P, schedule, steps, t, 0, NULL);
}

/* Equal on all ranks, and averages are averages. */
__attribute__((unused)) static int sound(const job_run *j, int P)
{
	int good = 1;
	for (int p = 0; p < P; p++)
		good &= !j->failed[p] && j->nbuckets[p] == j->nbuckets[0] && j->print[p] == j->print[0] &&
		        j->plans[p] == j->plans[0] &&
		        !memcmp(j->ends[p], j->ends[0], j->nbuckets[0] * sizeof *j->ends[0]) && j->off[p] < 1e-5;
	return good;
}

#endif
