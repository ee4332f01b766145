/* Reducers of parts of the model, and the residuals that are carried over when they go.
 *
 * Both assignments' reducers live for a moment, while one takes over from the other; what
 * has been left is freed at once, with its error memory. Its residual is a float a number
 * of the tensors it compressed, until the next finite step has carried it. What is compared
 * with dense steps is set aside meanwhile, and goes on as if those had not been when it wins. */
#include "reducer/autotune/tuner_gpu.h"
#include "reducer/autotune/tuner_internal.h"

#include "base/error.h"
#include "reducer/bucketing/rebucket.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void partition_free(tuner *c, partition *p, int last)
{
	if (!p)
		return;
	c->parts.gone.buckets = 0;
	stats_add(&c->parts.gone, p);
	for (uint32_t i = 0; i < p->n; i++)
		if (p->sub[i].r)
			reducer_dispose(&p->sub[i].r->base);
	if (last)
		tuner_keep_row(c, p);
	else
		tuner_drop_rows(c);
	for (uint32_t i = 0; i < TUNER_PARTS; i++)
		free(p->sub[i].tensor);
	free(p->of);
	free(p->as);
	free(p);
}

static gradcomp_status make_part(tuner *c, subreducer *q, gradcomp_error *err)
{
	const candidate *k = &c->config.candidate[q->candidate];
	gradcomp_reducer_options o = c->wants.options;
	gradcomp_tensor_desc *desc = calloc(q->n, sizeof *desc);
	if (!desc) {
		/* The others make theirs. */
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory for the parts of a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", q->n);
	}
	for (uint32_t i = 0; i < q->n; i++) {
		const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - q->tensor[i]];
		desc[i] = (gradcomp_tensor_desc){.name = t->name, .dims = t->dims, .ndim = t->ndim, .dtype = t->dtype};
	}
	o.compressor = k->compressor;
	o.collective = k->collective ? k->collective : c->wants.collective;
	o.done = tuner_part_done;
	o.done_run = NULL;
	o.ctx = q;
	gradcomp_status st = reducer_create(c->group, desc, q->n, &o, &q->r, err);
	free(desc);
	if (!st) {
		q->r->base.report = tuner_part_kept;
		q->r->base.report_ctx = q;
	}
	return st;
}

/* Who has which tensor; -1 without memory. */
static int share_out(tuner *c, const assignment *a, partition *p)
{
	uint32_t n = c->ntensors;
	p->of = calloc(n, sizeof *p->of);
	p->as = calloc(n, sizeof *p->as);
	for (uint32_t k = c->config.n; p->of && p->as && k-- > 0;) {
		subreducer *q = &p->sub[p->n];
		if (!memchr(a->of, (int)k, n))
			continue;
		*q = (subreducer){.of = c, .candidate = k, .tensor = calloc(n, sizeof *q->tensor)};
		if (!q->tensor)
			return -1;
		for (uint32_t i = 0; i < n; i++) {
			if (a->of[i] != k)
				continue;
			p->of[i] = (uint8_t)p->n;
			p->as[i] = q->n;
			q->tensor[q->n++] = i;
		}
		p->n++;
	}
	return p->n ? 0 : -1;
}

gradcomp_status partition_make(tuner *c, const assignment *a, partition **out, gradcomp_error *err)
{
	partition *p = calloc(1, sizeof *p);
	gradcomp_status st = GRADCOMP_OK;
	if (!p || share_out(c, a, p)) {
		/* The others go on to make theirs. */
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory for the parts of a reducer");
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the parts of a reducer");
	}
	for (uint32_t i = 0; !st && i < p->n; i++)
		st = make_part(c, &p->sub[i], err);
	if (!st)
		*out = p;
	else
		partition_free(c, p, 0);
	return st;
}

void partition_resolve(tuner *c, const partition *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		candidate_resolve(&c->job->specs, c->wants.collective, &c->config.candidate[p->sub[i].candidate], NULL);
}

/* ---- residuals that are carried over ---- */

/* The reducer of a partition that holds something of tensor i back; NULL: none does. */
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

/* ---- a partition that is set aside while dense steps are compared with it ---- */

int partition_aside_is(const tuner *c, const assignment *a)
{
	const partition *p = c->parts.aside;
	for (uint32_t i = 0; p && i < c->ntensors; i++)
		if (p->sub[p->of[i]].candidate != a->of[i])
			return 0;
	return p != NULL;
}

gradcomp_status partition_aside_end(tuner *c, gradcomp_error *err)
{
	partition *p = c->parts.aside;
	gradcomp_status st = p ? residual_carry_take(c, p, err) : GRADCOMP_OK;
	c->parts.aside = NULL;
	partition_free(c, p, 0);
	return st;
}

/* Gradients are converted in runs that stay in the first-level cache. */
#define RUN 1024

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

/* From averages in host memory. */
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
