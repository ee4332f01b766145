/* Reducers of parts of the model.
 *
 * Both assignments' reducers live for a moment, while one takes over from the other; what
 * has been left is freed at once, with its error memory. Its residual is a float a number
 * of the tensors it compressed, until the next finite step has carried it. What is compared
 * with dense steps is set aside meanwhile, and goes on as if those had not been when it wins. */
#include "kinds/autotune/tuner_internal.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

void partition_free(tuner *c, partition *p, int last)
{
	if (!p)
		return;
	c->parts.gone.buckets = 0;
	tuner_stats_add(&c->parts.gone, p);
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
	gradcomp_status st = reducer_create(c->group, desc, q->n, &o, false, &q->r, err);
	free(desc);
	if (!st) {
		q->r->base.report = tuner_part_kept;
		q->r->base.report_ctx = q;
	}
	return st;
}

/* Says who has which tensor; -1 without memory. */
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
		tuner_candidate_resolve(&c->job->specs, c->wants.collective, &c->config.candidate[p->sub[i].candidate],
		                        NULL);
}

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
