/* auto gives up compressors, and carries over what they still owe. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"
#include "reducer/bucketing/rebucket.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Gradients are converted in runs that stay in the first-level cache. */
#define RUN 1024

/* Finds the reducer of a partition that holds something of tensor i back; NULL: none does. */
static reducer *holder(const tuner *c, const partition *p, uint32_t i)
{
	const subreducer *q = &p->sub[p->of[i]];
	const engine *eng = &q->r->eng;
	int holds = eng->compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM ||
	            gradcomp_keeps_error(eng->compressor, eng->values);
	return holds && c->layout.tensors[c->ntensors - 1 - i].numel ? q->r : NULL;
}

static gradcomp_status no_memory(uint64_t numel, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu numbers that are still to be sent",
	                 (unsigned long long)numel);
}

gradcomp_status residual_carry_take(tuner *c, const partition *p, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < c->ntensors; i++) {
		uint64_t n = c->layout.tensors[c->ntensors - 1 - i].numel;
		reducer *r = holder(c, p, i);
		if (!r)
			continue;
		if (!c->parts.carry[i])
			c->parts.carry[i] = calloc(n, sizeof *c->parts.carry[i]);
		if (!c->parts.carry[i])
			return no_memory(n, err);
		st = reducer_residual_export(r, p->as[i], c->parts.carry[i], err);
	}
	return st;
}

int residual_carried(const tuner *c, uint32_t i)
{
	return c->parts.carry[i] || (c->parts.aside && holder(c, c->parts.aside, i));
}

gradcomp_status residual_carry_copy(const tuner *c, uint32_t i, float *to, gradcomp_error *err)
{
	uint64_t n = c->layout.tensors[c->ntensors - 1 - i].numel;
	reducer *r = c->parts.aside ? holder(c, c->parts.aside, i) : NULL;
	if (c->parts.carry[i])
		memcpy(to, c->parts.carry[i], n * sizeof *to);
	else
		memset(to, 0, n * sizeof *to);
	return r ? reducer_residual_copy(r, c->parts.aside->as[i], to, err) : GRADCOMP_OK;
}

gradcomp_status residual_carry_add(tuner *c, uint32_t i, void *gradient, gradcomp_error *err)
{
	const gradcomp_operators *ops = c->job->host.operators;
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	size_t width = gradcomp_dtype_bytes(t->dtype);
	float run[RUN];
	if (c->gpu)
		return c->parts.carry[i] ? tuner_gpu_carry(c, i, gradient, err) : GRADCOMP_OK;
	for (uint64_t at = 0; c->parts.carry[i] && at < t->numel; at += RUN) {
		size_t len = t->numel - at < RUN ? t->numel - at : RUN;
		char *g = (char *)gradient + at * width;
		ops->cast_to_f32(NULL, run, g, len, t->dtype);
		ops->add(NULL, run, c->parts.carry[i] + at, len);
		ops->cast_from_f32(NULL, g, run, len, t->dtype, 0);
	}
	return GRADCOMP_OK;
}

/* Clears what is carried over where an average in host memory is finite, which has it then. */
static void settle(tuner *c, uint32_t i, const void *average)
{
	const gradcomp_operators *ops = c->job->host.operators;
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	size_t width = gradcomp_dtype_bytes(t->dtype);
	int left = 0;
	float run[RUN];
	for (uint64_t at = 0; at < t->numel; at += RUN) {
		size_t len = t->numel - at < RUN ? t->numel - at : RUN;
		ops->cast_to_f32(NULL, run, (const char *)average + at * width, len, t->dtype);
		for (size_t k = 0; k < len; k++) {
			if (isfinite(run[k]))
				c->parts.carry[i][at + k] = 0;
			left |= !isfinite(run[k]);
		}
	}
	if (left)
		return;
	free(c->parts.carry[i]);
	c->parts.carry[i] = NULL;
}

gradcomp_status residual_carry_settle(tuner *c, uint32_t i, const void *average, gradcomp_error *err)
{
	void *copied;
	gradcomp_status st = GRADCOMP_OK;
	if (!c->parts.carry[i])
		return st;
	if (!c->gpu) {
		settle(c, i, average);
		return st;
	}
	st = tuner_gpu_averaged(c, i, average, &copied, err);
	if (!st) {
		settle(c, i, copied);
		tuner_gpu_averaged_end(c, i);
	}
	return st;
}
