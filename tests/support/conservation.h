/* Steps of a reducer on every rank: the same bits everywhere, and u = a P + what error
 * memories hold, to rounding; NaN told and survived. */
#ifndef TESTS_SUPPORT_CONSERVATION_H
#define TESTS_SUPPORT_CONSERVATION_H

#include "tests/support/small_model.h"

#include "reducer/reducer.h"

#include <math.h>

enum { NUMEL = 4096, STEPS = 4 };

/* The ranks of a run show each other this. */
typedef struct show {
	const char *spec;
	uint64_t bucket_bytes;
	int nan_step; /* -1: none */
	model *models[MAX_RANKS];
	float before[MAX_RANKS][NUMEL]; /* error memory */
	int failed[MAX_RANKS];
	int passes, unbiased; /* traits */
	int elsewhere;        /* the collective has a memory, or error memory is not the bucket's */
	char cannot[508];     /* why a reducer is not to be had on this machine */
	uint64_t prints[MAX_RANKS];
	double off, apart; /* from conservation; from the mean, as a share of it */
} show;

/* Error memory as tensor t has it; NULL: there is none. */
static const float *memory_of(const model *m, int t)
{
	return reducer_of(m->red)->eng.arrays.error
	               ? reducer_of(m->red)->eng.arrays.error + reducer_of(m->red)->eng.layout.tensors[T - 1 - t].offset
	               : NULL;
}

/* With all ranks standing still: everything that went in came out or is held. */
static void compare(show *s, int P, int step)
{
	double squares = 0, wrong = 0;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++) {
			double in = 0, held = 0, mean = 0, a = s->models[0]->grad[t][i];
			for (int r = 0; r < P; r++) {
				const float *e = memory_of(s->models[r], t);
				double g = gradient(r, step, t, i);
				mean += g / P;
				in += g + (e ? s->before[r][reducer_of(s->models[r]->red)
				                                    ->eng.layout.tensors[T - 1 - t]
				                                    .offset +
				                            i]
				             : 0);
				held += e ? e[i] : 0;
			}
			double off = fabs(in - P * a - held);
			if (memory_of(s->models[0], t) && !s->unbiased && !s->elsewhere && !(off <= s->off))
				s->off = off;
			squares += mean * mean;
			wrong += (a - mean) * (a - mean);
		}
	double apart = sqrt(wrong / squares);
	if (!(apart <= s->apart))
		s->apart = apart;
}

static gradcomp_status poisoned_step(model *m, int rank, int P, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = gradient(rank, 99, t, i);
	if (rank == P - 1)
		m->grad[4][7] = INFINITY;
	for (int t = T - 1; !st && t >= 0; t--)
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	return st ? st : gradcomp_reducer_wait(m->red, err);
}

static void steps_body(gradcomp_job *job, int rank, int P, void *arg)
{
	show *s = arg;
	gradcomp_error err = {0};
	model m;
	gradcomp_status st = model_open(&m, gradcomp_job_world(job), s->spec, s->bucket_bytes, &err);
	if (st == GRADCOMP_ERR_UNSUPPORTED && rank == 0)
		memcpy(s->cannot, err.text, sizeof s->cannot);
	if (st) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		s->failed[rank] = 1;
		return;
	}
	uint64_t bytes = reducer_of(m.red)->eng.layout.numel * sizeof(float);
	s->models[rank] = &m;
	if (rank == 0) {
		s->passes = !!(reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
		s->unbiased = !!(reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_UNBIASED);
		s->elsewhere = !!(reducer_of(m.red)->eng.coll_ctx.collective->serves &
		                  (GRADCOMP_CAN_EXCHANGE | GRADCOMP_CAN_SHARD));
	}
	ranks_wait();
	for (int step = 0; step < STEPS && !s->failed[rank]; step++) {
		if (reducer_of(m.red)->eng.arrays.error)
			memcpy(s->before[rank], reducer_of(m.red)->eng.arrays.error, bytes);
		if (step == s->nan_step) {
			s->failed[rank] |= poisoned_step(&m, rank, P, &err) != 0;
			for (uint64_t i = 0; i < numel(4); i++)
				s->failed[rank] |= (s->passes ? i == 7 && isfinite(m.grad[4][i]) : !isnan(m.grad[4][i]))
				                   << 1;
			s->failed[rank] |=
				reducer_of(m.red)->eng.arrays.error &&
						memcmp(s->before[rank], reducer_of(m.red)->eng.arrays.error, bytes) &&
						s->bucket_bytes > 1e6
					? 4
					: 0;
			continue;
		}
		s->failed[rank] |= model_step(&m, rank, step, &err) != 0;
		ranks_wait();
		if (rank == 0)
			compare(s, P, step);
		ranks_wait();
		s->prints[rank] = mix(s->prints[rank] ^ fingerprint(&m));
	}
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	gradcomp_reducer_get_stats(m.red, &stats);
	s->failed[rank] |= (stats.nonfinite_steps != (uint64_t)(s->nan_step >= 0 && !s->passes)) << 3;
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&m);
}

/* apart: how far from the mean a step may be, as a share of it; 0: to rounding. `where` is for the name. */
static void run_spec_on(const char *where, const char *spec, int P, uint64_t bucket_bytes, int nan_step,
                        const char *const *settings, double apart)
{
	show *s = calloc(1, sizeof *s);
	int failed = 0, differ = 0;
	s->spec = spec;
	s->bucket_bytes = bucket_bytes;
	s->nan_step = nan_step;
	run_ranks(P, settings, steps_body, s);
	if (*s->cannot) {
		skip(s->cannot, "%s%s", spec, where);
		free(s);
		return;
	}
	for (int r = 0; r < P; r++) {
		failed |= s->failed[r];
		differ |= s->prints[r] != s->prints[0];
	}
	ok(!failed && !differ && s->off <= 2e-5 && s->apart <= apart,
	   "%s%s%s on %d ranks, buckets of %llu bytes: %.1e lost, %.2g from the mean", spec, where,
	   nan_step < 0 ? "" : " with an Inf", P, (unsigned long long)bucket_bytes, s->off, s->apart);
	if (failed || differ)
		printf("# %s, %#x\n", differ ? "ranks differ" : "a rank failed", (unsigned)failed);
	free(s);
}

/* How far from the mean a compressor that keeps nothing back may be. */
__attribute__((unused)) static double apart_of(const struct gradcomp_compressor_v1 *c)
{
	if (c->traits & GRADCOMP_TRAIT_LOSSLESS)
		return 1e-6;
	return c->traits & (GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_OWN_MOMENTUM)
	               ? HUGE_VAL
	               : 0.3;
}

#endif
