/* Reducers of parts of the model, and what is owed when they go.
 *
 * Both assignments' reducers live for a moment, while one takes over from the other; what
 * has been left is freed at once, with its error memory. What it owed is a float a number
 * of the tensors it compressed, until the next finite step has carried it. */
#include "reducer/autotune/tuner_internal.h"

#include "base/error.h"
#include "reducer/bucketing/rebucket.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void partition_free(choice *c, parts *p, int last)
{
	if (!p)
		return;
	c->gone.buckets = 0;
	stats_add(&c->gone, p);
	for (uint32_t i = 0; i < p->n; i++)
		if (p->part[i].r)
			gradcomp_reducer_free(&p->part[i].r->base);
	if (last)
		tuner_keep_row(c, p);
	else
		tuner_drop_rows(c);
	for (uint32_t i = 0; i < TUNER_PARTS; i++)
		free(p->part[i].tensor);
	free(p->of);
	free(p->as);
	free(p);
}

static gradcomp_status make_part(choice *c, part *q, gradcomp_error *err)
{
	const candidate *k = &c->wish.candidate[q->candidate];
	gradcomp_reducer_options o = c->options;
	gradcomp_tensor_desc *desc = calloc(q->n, sizeof *desc);
	if (!desc) {
		/* The others make theirs. */
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory for the parts of a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", q->n);
	}
	for (uint32_t i = 0; i < q->n; i++) {
		const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - q->tensor[i]];
		desc[i] = (gradcomp_tensor_desc){
			.name = t->name, .dims = t->dims, .ndim = t->ndim, .dtype = t->dtype};
	}
	o.compressor = k->compressor;
	o.collective = k->collective ? k->collective : c->collective;
	o.done = tuner_part_done;
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
static int share_out(choice *c, const assignment *a, parts *p)
{
	uint32_t n = c->ntensors;
	p->of = calloc(n, sizeof *p->of);
	p->as = calloc(n, sizeof *p->as);
	for (uint32_t k = c->wish.n; p->of && p->as && k-- > 0;) {
		part *q = &p->part[p->n];
		if (!memchr(a->of, (int)k, n))
			continue;
		*q = (part){.of = c, .candidate = k, .tensor = calloc(n, sizeof *q->tensor)};
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

gradcomp_status partition_make(choice *c, const assignment *a, parts **out, gradcomp_error *err)
{
	parts *p = calloc(1, sizeof *p);
	gradcomp_status st = GRADCOMP_OK;
	if (!p || share_out(c, a, p)) {
		/* The others go on to make theirs. */
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory for the parts of a reducer");
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the parts of a reducer");
	}
	for (uint32_t i = 0; !st && i < p->n; i++)
		st = make_part(c, &p->part[i], err);
	if (!st)
		*out = p;
	else
		partition_free(c, p, 0);
	return st;
}

void partition_resolve(choice *c, const parts *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		candidate_resolve(c->job->config, c->collective, &c->wish.candidate[p->part[i].candidate], NULL);
}

/* ---- what is owed ---- */

gradcomp_status residual_carry_take(choice *c, const parts *p, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < c->ntensors; i++) {
		const part *q = &p->part[p->of[i]];
		uint64_t n = q->r->eng.layout.tensors[q->n - 1 - p->as[i]].numel;
		if (!(q->r->eng.compressor->traits & (GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_OWN_MOMENTUM)) ||
		    !n)
			continue;
		if (!c->owed[i])
			c->owed[i] = calloc(n, sizeof *c->owed[i]);
		if (!c->owed[i])
			return error_set(err, GRADCOMP_ERR_NOMEM,
			                 "no memory for %llu numbers that are still to be sent",
			                 (unsigned long long)n);
		st = reducer_residual_export(q->r, p->as[i], c->owed[i], err);
	}
	return st;
}

/* Gradients are converted in runs that stay in the first-level cache. */
#define RUN 1024

void residual_carry_add(choice *c, uint32_t i, void *gradient)
{
	const gradcomp_operators *ops = c->job->host.operators;
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	size_t width = gradcomp_dtype_bytes(t->dtype);
	float run[RUN];
	for (uint64_t at = 0; c->owed[i] && at < t->numel; at += RUN) {
		size_t len = t->numel - at < RUN ? t->numel - at : RUN;
		char *g = (char *)gradient + at * width;
		ops->cast_to_f32(NULL, run, g, len, t->dtype);
		ops->add(NULL, run, c->owed[i] + at, len);
		ops->cast_from_f32(NULL, g, run, len, t->dtype, 0);
	}
}

void residual_carry_settle(choice *c, uint32_t i, const void *average)
{
	const gradcomp_operators *ops = c->job->host.operators;
	const gradcomp_tensor *t = &c->layout.tensors[c->ntensors - 1 - i];
	size_t width = gradcomp_dtype_bytes(t->dtype);
	int left = 0;
	float run[RUN];
	for (uint64_t at = 0; c->owed[i] && at < t->numel; at += RUN) {
		size_t len = t->numel - at < RUN ? t->numel - at : RUN;
		ops->cast_to_f32(NULL, run, (const char *)average + at * width, len, t->dtype);
		for (size_t k = 0; k < len; k++) {
			if (isfinite(run[k]))
				c->owed[i][at + k] = 0;
			left |= !isfinite(run[k]);
		}
	}
	if (left)
		return;
	free(c->owed[i]);
	c->owed[i] = NULL;
}
