/* The tests of delayed averages share this: memory for the model's tensors in any type, a reducer with a delay,
 * steps of it, and a run on several ranks with what it must come to. */
#ifndef TESTS_SUPPORT_DELAYED_FIXTURE_H
#define TESTS_SUPPORT_DELAYED_FIXTURE_H

#include "tests/support/small_model.h"
#include "operators/operator_tables.h"

#include <math.h>

struct run {
	const char *spec;
	gradcomp_dtype dtype;
	uint32_t delay;
	int failed[MAX_RANKS];
	double worst[MAX_RANKS];
	uint64_t fingerprint[MAX_RANKS];
};

/* Memory for the model's tensors, of a type. */
typedef struct values {
	gradcomp_dtype dtype;
	void *at[T];
} values;

__attribute__((unused)) static void values_open(values *v, gradcomp_dtype dtype)
{
	v->dtype = dtype;
	for (int t = 0; t < T; t++)
		v->at[t] = calloc(numel(t) + 1, gradcomp_dtype_bytes(dtype));
}

__attribute__((unused)) static void values_close(values *v)
{
	for (int t = 0; t < T; t++)
		free(v->at[t]);
}

__attribute__((unused)) static float get(const values *v, int t, uint64_t i)
{
	float x;
	operators_cpu()->cast_to_f32(NULL, &x, (const char *)v->at[t] + i * gradcomp_dtype_bytes(v->dtype), 1,
	                             v->dtype);
	return x;
}

__attribute__((unused)) static void put(values *v, int t, uint64_t i, float x)
{
	operators_cpu()->cast_from_f32(NULL, (char *)v->at[t] + i * gradcomp_dtype_bytes(v->dtype), &x, 1, v->dtype, 0);
}

__attribute__((unused)) static uint64_t values_fingerprint(const values *v)
{
	uint64_t h = 0, w = 0;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++) {
			memcpy(&w, (const char *)v->at[t] + i * gradcomp_dtype_bytes(v->dtype),
			       gradcomp_dtype_bytes(v->dtype));
			h = mix(h ^ w) + 1;
		}
	return h;
}

__attribute__((unused)) static gradcomp_status open_delayed(gradcomp_reducer **red, gradcomp_group *g, const char *spec,
                                                            gradcomp_dtype dtype, uint32_t delay, int *done,
                                                            gradcomp_error *err)
{
	gradcomp_tensor_desc desc[T];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = spec,
	                              .bucket_bytes = 5000,
	                              .seed = 5,
	                              .done = done ? on_done : NULL,
	                              .ctx = done,
	                              .delay = delay};
	for (int t = 0; t < T; t++)
		desc[t] = (gradcomp_tensor_desc){.name = names[t], .dims = dims[t], .ndim = ndim[t], .dtype = dtype};
	*red = NULL;
	return gradcomp_reducer_create(g, desc, T, &o, red, err);
}

/* Gives a step's gradients in an order of the rank's own. */
__attribute__((unused)) static gradcomp_status give(gradcomp_reducer *red, values *v, int rank, int step,
                                                    gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st && k < T; k++) {
		int t = (rank * 5 + step + 1 + k) % T;
		for (uint64_t i = 0; i < numel(t); i++)
			put(v, t, i, gradient(rank, step, t, i));
		st = gradcomp_reducer_ready(red, (uint32_t)t, v->at[t], err);
	}
	return st;
}

__attribute__((unused)) static gradcomp_status step(gradcomp_reducer *red, values *v, int rank, int number,
                                                    gradcomp_error *err)
{
	gradcomp_status st = give(red, v, rank, number, err);
	return st ? st : gradcomp_reducer_wait(red, err);
}

/* Own gradients as the type holds them. */
__attribute__((unused)) static float own(const struct run *run, int rank, int number, int t, uint64_t i)
{
	values v = {.dtype = run->dtype};
	uint32_t word;
	for (int k = 0; k < T; k++)
		v.at[k] = &word;
	put(&v, t, 0, gradient(rank, number, t, i));
	return get(&v, t, 0);
}

#define STEPS 9

__attribute__((unused)) static void check(int P, const char *const *settings, const char *what, struct run run,
                                          double tolerance, void (*body)(gradcomp_job *, int, int, void *))
{
	static const char *const types[] = {"F32", "F16", "BF16"};
	int failed = 0, differ = 0;
	double worst = 0;
	run_ranks(P, settings, body, &run);
	for (int r = 0; r < P; r++) {
		failed |= run.failed[r];
		differ |= run.fingerprint[r] != run.fingerprint[0];
		worst = worst > run.worst[r] ? worst : run.worst[r];
	}
	ok(!failed && !differ && worst <= tolerance, "%s: %s, %s, delay %u, %d ranks (off by at most %.2g)", what,
	   run.spec, types[run.dtype], run.delay, P, worst);
	if (failed || differ)
		printf("# %s%s\n", failed ? "a call failed or bits are wrong; " : "", differ ? "ranks differ" : "");
}

#endif
