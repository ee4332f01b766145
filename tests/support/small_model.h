/* A small model for reducer tests: six tensors of odd shapes, gradients that any rank
 * can work out for any other, steps that give them in an order of the rank's own. */
#ifndef TESTS_SUPPORT_SMALL_MODEL_H
#define TESTS_SUPPORT_SMALL_MODEL_H

#include "tests/support/thread_ranks.h"

#define T 6
static const uint64_t dims[T][3] = {{33, 17}, {17}, {0, 5}, {1}, {40, 3, 5}, {64, 31}};
static const uint32_t ndim[T] = {2, 1, 2, 0, 3, 2};
static const char *const names[T] = {"w1", "b1", "empty", "scale", "conv", "w2"};

static uint64_t seed;

static uint64_t mix(uint64_t z)
{
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

static float gradient(int rank, int step, int t, uint64_t i)
{
	uint64_t h = mix(seed + mix((uint64_t)rank * 1000003 + (uint64_t)step * 10007 + (uint64_t)t * 101 + i * 7919));
	return (float)((double)(h >> 11) / 9007199254740992.0 - 0.5);
}

static uint64_t numel(int t)
{
	uint64_t n = 1;
	for (uint32_t k = 0; k < ndim[t]; k++)
		n *= dims[t][k];
	return n;
}

typedef struct model {
	float *grad[T];
	gradcomp_reducer *red;
	int done;
} model;

static void on_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	(void)tensor, (void)err;
	__atomic_add_fetch((int *)ctx, status ? 1000 : 1, __ATOMIC_SEQ_CST);
}

__attribute__((unused)) static void model_close(model *m)
{
	gradcomp_reducer_free(m->red);
	for (int t = 0; t < T; t++)
		free(m->grad[t]);
}

/* But for who is told of tensors. */
__attribute__((unused)) static gradcomp_status model_open_with(model *m, gradcomp_group *g,
                                                               const gradcomp_reducer_options *with,
                                                               gradcomp_error *err)
{
	gradcomp_tensor_desc desc[T];
	gradcomp_reducer_options o = *with;
	o.done = on_done;
	o.ctx = &m->done;
	memset(m, 0, sizeof *m);
	for (int t = 0; t < T; t++) {
		desc[t] = (gradcomp_tensor_desc){.name = names[t], .dims = dims[t], .ndim = ndim[t]};
		m->grad[t] = calloc(numel(t) + 1, sizeof(float));
	}
	gradcomp_status st = gradcomp_reducer_create(g, desc, T, &o, &m->red, err);
	if (st)
		model_close(m);
	return st;
}

/* collective: NULL: the job's. */
__attribute__((unused)) static gradcomp_status model_open_over(model *m, gradcomp_group *g, const char *spec,
                                                               const char *collective, uint64_t bucket_bytes,
                                                               gradcomp_error *err)
{
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = spec,
	                                    .collective = collective,
	                                    .bucket_bytes = bucket_bytes,
	                                    .seed = 5};
	return model_open_with(m, g, &o, err);
}

__attribute__((unused)) static gradcomp_status model_open(model *m, gradcomp_group *g, const char *spec,
                                                          uint64_t bucket_bytes, gradcomp_error *err)
{
	return model_open_over(m, g, spec, NULL, bucket_bytes, err);
}

/* One step on gradients of `step` (-1: zeroes), given in an order of the rank's
 * own. */
__attribute__((unused)) static gradcomp_status model_step(model *m, int rank, int step, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	int first = (rank * 5 + step + 1) % T;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = step < 0 ? 0 : gradient(rank, step, t, i);
	for (int k = 0; !st && k < T; k++) {
		int t = (first + k) % T;
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	}
	return st ? st : gradcomp_reducer_wait(m->red, err);
}

__attribute__((unused)) static uint64_t fingerprint(const model *m)
{
	uint64_t h = 0, w = 0;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++) {
			memcpy(&w, &m->grad[t][i], 4);
			h = mix(h ^ w) + 1;
		}
	return h;
}

/* New gradients in every run. */
__attribute__((unused)) static void model_seed(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	seed = mix((uint64_t)ts.tv_nsec);
	printf("# seed %llu\n", (unsigned long long)seed);
}

#endif
