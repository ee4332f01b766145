/* The tasks of a bucket whose gradients are in GPU memory, see gpu.h. */
#include "reducer/gpu/gpu.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* The task is run again when what is on the compute stream now is over. */
static gradcomp_status pause_here(gradcomp_reducer *r, bucket *b, const char *why, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	if (!why)
		why = g->d->record(g->passed[b->pub.index], g->compute);
	b->later = why ? 0 : ++r->gpu->put;
	return gpu_check(why, "a bucket's work could not be put on its stream", err);
}

static gradcomp_status over(const gpu *g, const bucket *b, int *is, gradcomp_error *err)
{
	return gpu_check(g->d->test(g->passed[b->pub.index], is), "a bucket's work failed", err);
}

uint32_t gpu_next(gradcomp_reducer *r)
{
	const gpu *g = r->gpu;
	uint32_t aside[REDUCER_WORKSPACES], n = 0, i, first = SCHEDULE_NONE;
	int is = 0;
	while ((i = schedule_compute(&r->schedule)) != SCHEDULE_NONE) {
		const bucket *b = &r->buckets[i];
		if (!b->later || over(g, b, &is, NULL) || is)
			break;
		/* The stream comes first to what was put there first. */
		if (first == SCHEDULE_NONE || b->later < r->buckets[first].later)
			first = i;
		aside[n++] = i;
	}
	for (uint32_t k = 0; k < n; k++)
		if (i != SCHEDULE_NONE || aside[k] != first)
			schedule_later(&r->schedule, aside[k]);
	if (i != SCHEDULE_NONE || first == SCHEDULE_NONE)
		return i;
	r->running++;
	pthread_mutex_unlock(&r->lock);
	g->d->wait(g->passed[first]);
	pthread_mutex_lock(&r->lock);
	r->running--;
	if (r->failed)
		pthread_cond_broadcast(&r->step_over);
	return first;
}

/* ---- ON_DEVICE ---- */

static const char *copy_down(const gpu *g, int *to, const int *from, uint32_t n)
{
	return g->d->copy(g->compute, to, from, n * sizeof(int));
}

/* u = gradient + error memory, into x; finite or not, and sampled. */
static gradcomp_status accumulate(gradcomp_reducer *r, bucket *b, uint32_t i, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	uint32_t k = b->pub.first + i;
	const gradcomp_tensor *t = &r->tensors[k];
	gradcomp_status st = GRADCOMP_OK;
	if ((void *)b->x[i] != r->grads[k])
		st = g->ops->cast_to_f32(g->compute, b->x[i], r->grads[k], t->numel, t->dtype);
	if (st)
		return error_set(err, st, "tensor '%s': its type cannot be read on a CUDA device", t->name);
	g->ops->nonfinite(g->compute, b->x[i], t->numel, g->words + k);
	if (r->error)
		g->ops->add(g->compute, b->x[i], b->error[i], t->numel);
	if (r->memory)
		gpu_sample_squares(r, b->x[i], r->error ? NULL : r->memory + t->offset, t->numel, g->squares + k);
	return GRADCOMP_OK;
}

static gradcomp_status begin(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	const char *why = NULL;
	if (b->later) {
		b->later = 0;
		for (uint32_t i = 0; i < n && !b->local_bad; i++)
			b->local_bad = g->seen[first + i] ? (int)i + 1 : 0;
		if (b->local_bad && r->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE)
			task_pass_on(r, b);
		return GRADCOMP_OK;
	}
	gradcomp_status st = task_place(r, b, err);
	for (uint32_t i = 0; !why && i < n; i++)
		why = g->d->follow(g->compute, g->ready[first + i]);
	if (!why)
		why = g->d->zero(g->compute, b->work.fault, sizeof(int));
	for (uint32_t i = 0; !st && !why && i < n; i++)
		st = accumulate(r, b, i, err);
	if (!why)
		why = copy_down(g, g->seen + first, g->words + first, n);
	return st ? st : pause_here(r, b, why, err);
}

static gradcomp_status finished(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	uint32_t first = b->pub.first, n = r->layout.ntensors;
	b->later = 0;
	if (g->seen[gpu_fault_word(r, b)] || g->seen[gpu_code_word(r)])
		return task_damaged(r, b, err);
	for (uint32_t i = first; r->memory && !b->bad && i < first + b->pub.ntensors; i++) {
		r->held[i].u = g->squares_seen[i];
		residual_norm_tensor(r, i, g->squares_seen[n + i]);
	}
	return GRADCOMP_OK;
}

static gradcomp_status finish(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	uint32_t first = b->pub.first, n = r->layout.ntensors;
	size_t words = gpu_fault_word(r, b), code = gpu_code_word(r), doubles = b->pub.ntensors * sizeof(double);
	const char *why;
	if (b->later)
		return finished(r, b, err);
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &r->tensors[first + i];
		if (r->memory && !b->bad)
			gpu_sample_squares(r, r->memory + t->offset, NULL, t->numel, g->squares + n + first + i);
		if (b->bad)
			g->ops->fill(g->compute, b->x[i], NAN, t->numel);
		if (b->copy_out)
			g->ops->cast_from_f32(g->compute, r->grads[first + i], b->x[i], t->numel, t->dtype, 0);
	}
	why = copy_down(g, g->seen + words, g->words + words, 1);
	if (!why)
		why = copy_down(g, g->seen + code, g->words + code, 1);
	if (!why && r->memory)
		why = g->d->copy(g->compute, g->squares_seen + first, g->squares + first, doubles);
	if (!why && r->memory)
		why = g->d->copy(g->compute, g->squares_seen + n + first, g->squares + n + first, doubles);
	return pause_here(r, b, why, err);
}

/* ---- WHOLE ---- */

static gradcomp_status down(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	gpu *g = r->gpu;
	struct scratch_buf *buf = &g->mirror[b->workspace - r->workspaces].flat;
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	const char *why = NULL;
	size_t at = 0;
	gradcomp_status st = scratch_buf_grow(buf, b->pub.numel * sizeof(float) + n * 64, err);
	for (uint32_t i = first; !st && !why && i < first + n; i++) {
		size_t bytes = r->tensors[i].numel * gradcomp_dtype_bytes(r->tensors[i].dtype);
		r->grads[i] = (char *)buf->p + at;
		at += (bytes + 63) & ~(size_t)63;
		why = g->d->follow(g->compute, g->ready[i]);
		if (!why)
			why = g->d->copy(g->compute, r->grads[i], r->given[i], bytes);
	}
	return st ? st : pause_here(r, b, why, err);
}

static gradcomp_status up(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	const char *why = NULL;
	for (uint32_t i = b->pub.first; !why && i < b->pub.first + b->pub.ntensors; i++)
		why = g->d->copy(g->compute, r->given[i], r->grads[i],
		                 r->tensors[i].numel * gradcomp_dtype_bytes(r->tensors[i].dtype));
	return pause_here(r, b, why, err);
}

static gradcomp_status whole(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_status st;
	if (t->kind == TASK_BEGIN && !b->later)
		return down(r, b, err);
	if (t->kind == TASK_FINISH && b->later) {
		b->later = 0;
		return GRADCOMP_OK;
	}
	b->later = 0;
	st = task_host(r, b, t, err);
	return st || t->kind != TASK_FINISH ? st : up(r, b, err);
}

gradcomp_status gpu_task(gradcomp_reducer *r, bucket *b, const task *t, gradcomp_error *err)
{
	const gpu *g = r->gpu;
	gradcomp_status st = GRADCOMP_OK;
	int is = 1;
	if (b->later)
		st = over(g, b, &is, err);
	if (st) {
		b->later = 0;
		return st;
	}
	if (g->way == GPU_WHOLE)
		return whole(r, b, t, err);
	switch (t->kind) {
	case TASK_BEGIN:
		return begin(r, b, err);
	case TASK_EXCHANGE:
		return gpu_exchange(r, b, t->round, err);
	case TASK_FINISH:
		return finish(r, b, err);
	default:
		st = task_host(r, b, t, err);
		/* For the exchange thread to come after. */
		return st ? st : gpu_check(g->d->record(g->passed[b->pub.index], g->compute), "a bucket's work", err);
	}
}

/* held.c's sample of a tensor in GPU memory: the runs are copied together, and added up
 * where they are. */

static size_t take(const gpu *g, float *to, const float *x, uint64_t n)
{
	uint64_t rows = n / RESIDUAL_EVERY, rest = n % RESIDUAL_EVERY;
	uint64_t tail = rest < RESIDUAL_RUN ? rest : RESIDUAL_RUN;
	const size_t run = RESIDUAL_RUN * sizeof(float);
	g->d->copy_rows(g->compute, to, run, x, RESIDUAL_EVERY * sizeof(float), run, rows);
	g->d->copy(g->compute, to + rows * RESIDUAL_RUN, x + rows * RESIDUAL_EVERY, tail * sizeof(float));
	return rows * RESIDUAL_RUN + tail;
}

void gpu_sample_squares(gradcomp_reducer *r, const float *x, const float *more, uint64_t n, double *out)
{
	const gpu *g = r->gpu;
	size_t taken = take(g, g->sample, x, n);
	if (more) {
		take(g, g->sample_more, more, n);
		g->ops->add(g->compute, g->sample, g->sample_more, taken);
	}
	g->ops->sum_squares(g->compute, out, g->sample, taken, g->sum_room);
}
