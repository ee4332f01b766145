/* Hands out at once what delayed averages still owe. */
#include "kinds/delay/delay_gpu.h"

#include "base/error.h"
#include "job/consensus.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Adds the corrections that are pending to a tensor; rounded once, to its type. */
static void collect(const delay *d, const delay_tensor *t, char *correction)
{
	size_t size = gradcomp_dtype_bytes(t->dtype);
	float local[DELAY_RUN];
	const delay_run r = delay_front_run(d, local);
	for (uint64_t at = 0; at < t->numel; at += r.n) {
		size_t len = t->numel - at < r.n ? t->numel - at : r.n;
		d->ops->cast_to_f32(r.queue, r.x, correction + at * size, len, t->dtype);
		for (uint32_t j = 0; j < d->n_pending; j++)
			d->ops->add(r.queue, r.x, delay_correction(d, j) + t->offset + at, len);
		d->ops->cast_from_f32(r.queue, correction + at * size, r.x, len, t->dtype, 0);
	}
}

/* Takes the sum over ranks of `all`, by way of host memory. */
static gradcomp_status sum_over_ranks(delay *d, float *all, gradcomp_error *err)
{
	size_t bytes = d->model.numel * sizeof *all;
	float *host = d->gpu ? malloc(bytes + 1) : all;
	gradcomp_status st = GRADCOMP_OK;
	if (!host)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "drain: no memory for the %llu bytes of a model's weights",
		               (unsigned long long)bytes);
	if (!st && host != all)
		st = delay_gpu_copy(d, host, all, bytes, err);
	/* The others wait for it in the all-reduce. */
	if (st)
		job_fail(d->group->job, st, err->text);
	if (!st)
		st = group_allreduce(d->group, host, d->model.numel, GRADCOMP_F32, GRADCOMP_SUM, err);
	if (!st && host != all)
		st = delay_gpu_copy(d, all, host, bytes, err);
	if (host != all)
		free(host);
	return st;
}

/* The step with the corrections, then the mean over ranks, in one all-reduce of floats. */
static gradcomp_status settle_weights(delay *d, void *const *corrections, void *const *weights, float rate,
                                      gradcomp_error *err)
{
	float *all = d->model.slots[0], local[DELAY_RUN];
	const delay_run r = delay_front_run(d, local);
	for (uint32_t i = 0; i < d->model.n; i++) {
		const delay_tensor *t = &d->model.tensors[i];
		size_t size = gradcomp_dtype_bytes(t->dtype);
		float *w = all + t->offset;
		d->ops->cast_to_f32(r.queue, w, weights[i], t->numel, t->dtype);
		for (uint64_t at = 0; rate != 0 && at < t->numel; at += r.n) {
			size_t len = t->numel - at < r.n ? t->numel - at : r.n;
			d->ops->cast_to_f32(r.queue, r.x, (const char *)corrections[i] + at * size, len, t->dtype);
			d->ops->axpy(r.queue, w + at, -rate, r.x, len);
		}
	}
	gradcomp_status st = sum_over_ranks(d, all, err);
	if (st)
		return st;
	d->ops->scale(r.queue, all, 1.0f / (float)d->group->nranks, d->model.numel);
	for (uint32_t i = 0; i < d->model.n; i++)
		d->ops->cast_from_f32(r.queue, weights[i], all + d->model.tensors[i].offset, d->model.tensors[i].numel,
		                      d->model.tensors[i].dtype, 0);
	return GRADCOMP_OK;
}

static gradcomp_status check(const delay *d, void *const *corrections, void *const *weights, double rate,
                             gradcomp_error *err)
{
	if (!corrections)
		return error_set(err, GRADCOMP_ERR_INVALID, "drain: corrections is NULL");
	if (weights && !isfinite(rate))
		return error_set(err, GRADCOMP_ERR_INVALID, "drain: the rate is %g: must be finite", rate);
	for (uint32_t i = 0; i < d->model.n; i++)
		if (d->model.tensors[i].numel && (!corrections[i] || (weights && !weights[i])))
			return error_set(err, GRADCOMP_ERR_INVALID, "drain: %s[%u] of tensor '%s' is NULL",
			                 corrections[i] ? "weights" : "corrections", i, d->model.tensors[i].name);
	return GRADCOMP_OK;
}

typedef struct drain_claim {
	uint64_t weights;
	double rate;
} drain_claim;

static void differing_drains(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	const drain_claim *a = claim, *b = claim0;
	if (a->weights != b->weights)
		snprintf(out, capacity, "drains %s weights, rank %d %s them", a->weights ? "with" : "without", first,
		         b->weights ? "with" : "without");
	else
		snprintf(out, capacity, "drains with a rate of %g, rank %d with %g", a->rate, first, b->rate);
}

/* A rank that cannot must not leave the others waiting for its weights. */
static gradcomp_status agree(const delay *d, const drain_claim *c, gradcomp_status mine, gradcomp_error *err)
{
	return consensus(d->group, &(consensus_topic){"drain its reducer", c, sizeof *c, differing_drains, false}, mine,
	                 err);
}

gradcomp_status delay_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights, double rate,
                            gradcomp_error *err)
{
	delay *d = (delay *)base;
	drain_claim claim = {.weights = weights != NULL, .rate = weights ? rate : 0};
	gradcomp_error own = {0}, late = {0};
	gradcomp_status st = check(d, corrections, weights, rate, &own), settled;
	/* All that is under way comes to its end whatever was asked for: others wait for it. */
	pthread_mutex_lock(&d->lock);
	settled = delay_settle(d, "drain", &late);
	pthread_mutex_unlock(&d->lock);
	if (!st && settled)
		own = late;
	st = agree(d, &claim, st ? st : settled, &own);
	if (st)
		error_set(err, st, "%s", own.text);
	pthread_mutex_lock(&d->lock);
	if (!st) {
		for (uint32_t i = 0; d->n_pending && i < d->model.n; i++)
			collect(d, &d->model.tensors[i], corrections[i]);
		d->n_pending = 0;
		if (weights)
			st = settle_weights(d, corrections, weights, (float)rate, err);
		if (!st)
			st = delay_gpu_failed(d, err);
		if (!st)
			st = delay_gpu_follow(d, DELAY_ALL, NULL, err);
	}
	pthread_mutex_unlock(&d->lock);
	return st;
}
