/* The tasks of a bucket whose gradients are in GPU memory, see gpu.h. */
#include "reducer/gpu/gpu.h"
#include "reducer/residual_norm.h"

#include "base/error.h"

#include <math.h>
#include <string.h>

/* The task is run again when what is on the compute stream now is over. */
static gradcomp_status pause_here(engine *eng, bucket *b, const char *why, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	if (!why)
		why = g->d->record(g->passed[b->pub.index], g->compute);
	b->later = why ? 0 : ++eng->gpu->put;
	return gpu_check(why, "a bucket's work could not be put on its stream", err);
}

gradcomp_status gpu_passed(const gpu *g, const bucket *b, int *is, gradcomp_error *err)
{
	return gpu_check(g->d->test(g->passed[b->pub.index], is), "a bucket's work failed", err);
}

/* ---- ON_DEVICE ---- */

static const char *copy_down(const gpu *g, int *to, const int *from, uint32_t n)
{
	return g->d->copy(g->compute, to, from, n * sizeof(int));
}

/* The runs of a tensor that its norm is read from, copied together. */
static size_t take(const gpu *g, float *to, const float *x, uint64_t n)
{
	uint64_t rows = n / RESIDUAL_EVERY, rest = n % RESIDUAL_EVERY;
	uint64_t tail = rest < RESIDUAL_RUN ? rest : RESIDUAL_RUN;
	const size_t run = RESIDUAL_RUN * sizeof(float);
	g->d->copy_rows(g->compute, to, run, x, RESIDUAL_EVERY * sizeof(float), run, rows);
	g->d->copy(g->compute, to + rows * RESIDUAL_RUN, x + rows * RESIDUAL_EVERY, tail * sizeof(float));
	return rows * RESIDUAL_RUN + tail;
}

/* residual_norm_run() of a whole tensor in GPU memory: added up where it is. */
static void sample_squares(const engine *eng, const float *x, const float *more, uint64_t n, double *out)
{
	const gpu *g = eng->gpu;
	size_t taken = take(g, g->sample, x, n);
	if (more) {
		take(g, g->sample_more, more, n);
		g->ops->add(g->compute, g->sample, g->sample_more, taken);
	}
	g->ops->sum_squares(g->compute, out, g->sample, taken, g->sum_room);
}

/* u = gradient + error memory, into x; finite or not, and sampled. */
static gradcomp_status accumulate(engine *eng, bucket *b, uint32_t i, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	uint32_t k = b->pub.first + i;
	const gradcomp_tensor *t = &eng->layout.tensors[k];
	gradcomp_status st = GRADCOMP_OK;
	if ((void *)b->x[i] != eng->grads[k])
		st = g->ops->cast_to_f32(g->compute, b->x[i], eng->grads[k], t->numel, t->dtype);
	if (st)
		return error_set(err, st, "tensor '%s': its type cannot be read on a CUDA device", t->name);
	g->ops->nonfinite(g->compute, b->x[i], t->numel, g->words + k);
	if (eng->error)
		g->ops->add(g->compute, b->x[i], b->error[i], t->numel);
	if (eng->memory)
		sample_squares(eng, b->x[i], eng->error ? NULL : eng->memory + t->offset, t->numel, g->squares + k);
	return GRADCOMP_OK;
}

static gradcomp_status begin(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	const char *why = NULL;
	if (b->later) {
		b->later = 0;
		for (uint32_t i = 0; i < n && !b->local_bad; i++)
			b->local_bad = g->seen[first + i] ? (int)i + 1 : 0;
		if (b->local_bad && eng->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE)
			task_pass_on(eng, b);
		return GRADCOMP_OK;
	}
	gradcomp_status st = task_place(eng, b, err);
	for (uint32_t i = 0; !why && i < n; i++)
		why = g->d->follow(g->compute, g->ready[first + i]);
	if (!why)
		why = g->d->zero(g->compute, b->work.fault, sizeof(int));
	for (uint32_t i = 0; !st && !why && i < n; i++)
		st = accumulate(eng, b, i, err);
	if (!why)
		why = copy_down(g, g->seen + first, g->words + first, n);
	return st ? st : pause_here(eng, b, why, err);
}

static gradcomp_status finished(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	uint32_t first = b->pub.first, n = eng->layout.ntensors;
	b->later = 0;
	if (g->seen[gpu_fault_word(eng, b)] || g->seen[gpu_code_word(eng)])
		return task_damaged(eng, b, err);
	for (uint32_t i = first; eng->memory && !b->bad && i < first + b->pub.ntensors; i++) {
		eng->norms[i].u = g->squares_seen[i];
		residual_norm_tensor(eng, i, g->squares_seen[n + i]);
	}
	return GRADCOMP_OK;
}

static gradcomp_status finish(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	uint32_t first = b->pub.first, n = eng->layout.ntensors;
	size_t words = gpu_fault_word(eng, b), code = gpu_code_word(eng),
	       doubles = b->pub.ntensors * sizeof(double);
	const char *why;
	if (b->later)
		return finished(eng, b, err);
	for (uint32_t i = 0; i < b->pub.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[first + i];
		if (eng->memory && !b->bad)
			sample_squares(eng, eng->memory + t->offset, NULL, t->numel, g->squares + n + first + i);
		if (b->bad)
			g->ops->fill(g->compute, b->x[i], NAN, t->numel);
		if (b->copy_out)
			g->ops->cast_from_f32(g->compute, eng->grads[first + i], b->x[i], t->numel, t->dtype, 0);
	}
	why = copy_down(g, g->seen + words, g->words + words, 1);
	if (!why)
		why = copy_down(g, g->seen + code, g->words + code, 1);
	if (!why && eng->memory)
		why = g->d->copy(g->compute, g->squares_seen + first, g->squares + first, doubles);
	if (!why && eng->memory)
		why = g->d->copy(g->compute, g->squares_seen + n + first, g->squares + n + first, doubles);
	return pause_here(eng, b, why, err);
}

/* ---- WHOLE ---- */

static gradcomp_status down(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	scratch_buf *buf = &b->workspace->mirror->flat;
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	const char *why = NULL;
	size_t at = 0;
	gradcomp_status st = scratch_buf_grow(buf, b->pub.numel * sizeof(float) + n * 64, err);
	for (uint32_t i = first; !st && !why && i < first + n; i++) {
		size_t bytes = eng->layout.tensors[i].numel * gradcomp_dtype_bytes(eng->layout.tensors[i].dtype);
		eng->grads[i] = (char *)buf->p + at;
		at += (bytes + 63) & ~(size_t)63;
		why = g->d->follow(g->compute, g->ready[i]);
		if (!why)
			why = g->d->copy(g->compute, eng->grads[i], g->given[i], bytes);
	}
	return st ? st : pause_here(eng, b, why, err);
}

static gradcomp_status up(engine *eng, bucket *b, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	const char *why = NULL;
	for (uint32_t i = b->pub.first; !why && i < b->pub.first + b->pub.ntensors; i++)
		why = g->d->copy(g->compute, g->given[i], eng->grads[i],
		                 eng->layout.tensors[i].numel * gradcomp_dtype_bytes(eng->layout.tensors[i].dtype));
	return pause_here(eng, b, why, err);
}

static gradcomp_status whole(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	gradcomp_status st;
	if (t->kind == TASK_BEGIN && !b->later)
		return down(eng, b, err);
	if (t->kind == TASK_FINISH && b->later) {
		b->later = 0;
		return GRADCOMP_OK;
	}
	b->later = 0;
	st = task_host(eng, b, t, err);
	return st || t->kind != TASK_FINISH ? st : up(eng, b, err);
}

gradcomp_status gpu_task(engine *eng, bucket *b, const task *t, gradcomp_error *err)
{
	const gpu *g = eng->gpu;
	gradcomp_status st = GRADCOMP_OK;
	int is = 1;
	if (b->later)
		st = gpu_passed(g, b, &is, err);
	if (st) {
		b->later = 0;
		return st;
	}
	if (g->mode == GPU_WHOLE)
		return whole(eng, b, t, err);
	switch (t->kind) {
	case TASK_BEGIN:
		st = begin(eng, b, err);
		break;
	case TASK_EXCHANGE:
		st = gpu_exchange(eng, b, t->round, err);
		break;
	case TASK_FINISH:
		st = finish(eng, b, err);
		break;
	default:
		st = task_host(eng, b, t, err);
		/* For the exchange thread to come after. */
		if (!st)
			st = gpu_check(g->d->record(g->passed[b->pub.index], g->compute), "a bucket's work", err);
	}
	gradcomp_status launched = gpu_failed(g, st ? NULL : err);
	if (launched)
		b->later = 0;
	return st ? st : launched;
}
