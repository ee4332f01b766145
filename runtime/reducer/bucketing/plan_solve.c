#include "reducer/bucketing/plan_solve.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static gradcomp_status simple(const reducer *r, schedule_method method, uint64_t first_bytes, uint64_t bytes,
                              step_plan *out, gradcomp_error *err)
{
	uint32_t n = r->eng.layout.ntensors;
	uint64_t *numel = calloc(n, sizeof *numel);
	gradcomp_status st;
	if (!numel)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for buckets of %u tensors", n);
	for (uint32_t i = 0; i < n; i++)
		numel[i] = r->eng.layout.tensors[i].numel;
	const plan_search s = {.sim = {.n = n},
	                       .numel = numel,
	                       .max_numel = r->eng.compressor->max_bucket,
	                       .first_bytes = first_bytes,
	                       .bytes = bytes};
	st = plan_search_simple(&s, method, out, err);
	free(numel);
	return st;
}

gradcomp_status plan_solve_simple(const reducer *r, schedule_method method, step_plan *out, gradcomp_error *err)
{
	return simple(r, method, r->first_bucket_bytes, r->bucket_bytes, out, err);
}

gradcomp_status plan_solve_size(const reducer *r, uint64_t size, step_plan *out, gradcomp_error *err)
{
	return simple(r, SCHEDULE_FIXED, size * sizeof(float), size * sizeof(float), out, err);
}

/* The functions below say what a bucket costs, by what was measured. */

typedef struct question {
	plan_search search;
	reducer *r;
	const fit *f;
	double *forward, *backward;
	uint64_t *numel;
} question;

/* With two levels a rank knows the rounds of its own shards alone, of buckets there are:
 * others are taken to be as those that were measured. */
static void shard_plan(const fit *f, double numel, gradcomp_plan *plan)
{
	double rounds = f->rounds < 1 ? 1 : f->rounds > GRADCOMP_MAX_ROUNDS ? GRADCOMP_MAX_ROUNDS : f->rounds;
	plan->nrounds = (uint32_t)(rounds + 0.5);
	for (uint32_t k = 0; k < plan->nrounds; k++)
		plan->rounds[k] = (gradcomp_round){.pattern = GRADCOMP_GATHERED,
		                                   .bound = (uint64_t)(f->bytes * numel / plan->nrounds)};
}

static double task_seconds(const fit *f, const gradcomp_plan *plan, double numel, const task *t)
{
	if (t->kind == TASK_EXCHANGE)
		return linear_at(&f->exchange, (double)task_round_bytes(&plan->rounds[t->round]));
	if (t->kind == TASK_REDUCE_LOCAL || t->kind == TASK_ALLGATHER_LOCAL)
		return linear_at(t->kind == TASK_REDUCE_LOCAL ? &f->reduce : &f->spread, numel);
	return linear_at(&f->compute[compute_kind(t)], numel);
}

static gradcomp_status bucket_costs(void *ctx, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
                                    double *payload, gradcomp_error *err)
{
	const question *q = ctx;
	reducer *r = q->r;
	const gradcomp_tensor *from = &r->eng.layout.tensors[first], *to = &r->eng.layout.tensors[end - 1];
	const gradcomp_bucket b = {.struct_size = sizeof b,
	                           .index = index,
	                           .first = first,
	                           .ntensors = end - first,
	                           .offset = from->offset,
	                           .numel = to->offset + to->numel - from->offset};
	gradcomp_plan plan = {.struct_size = sizeof plan};
	gradcomp_status st = GRADCOMP_OK;
	if (r->eng.list.shards)
		shard_plan(q->f, (double)b.numel, &plan);
	else
		st = r->eng.compressor->plan(r->eng.instance, &b, r->eng.step, &plan, err);
	if (!st && !r->eng.list.shards)
		st = task_list_check_plan(r->eng.compressor, r->eng.layout.patterns, b.numel, &plan, err);
	if (st)
		return st;
	*payload = 0;
	for (uint32_t k = 0; k < plan.nrounds; k++)
		*payload += (double)task_round_bytes(&plan.rounds[k]);
	out->ntasks = (uint32_t)task_list_make(&plan, r->eng.list.shards != NULL, out->tasks);
	for (uint32_t k = 0; k < out->ntasks; k++)
		out->seconds[k] = task_seconds(q->f, &plan, (double)b.numel, &out->tasks[k]);
	return GRADCOMP_OK;
}

static void question_close(question *q)
{
	free(q->forward);
	free(q->backward);
	free(q->numel);
}

static gradcomp_status question_open(question *q, reducer *r, const fit *f, gradcomp_error *err)
{
	uint32_t n = f->ntensors;
	double passes = 0;
	*q = (question){.r = r,
	                .f = f,
	                .forward = calloc(n, sizeof *q->forward),
	                .backward = calloc(n, sizeof *q->backward),
	                .numel = calloc(n, sizeof *q->numel)};
	if (!q->forward || !q->backward || !q->numel) {
		question_close(q);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to plan %u tensors", n);
	}
	/* When gradients come, which is not always when they were made; a layer's part of the
	 * forward pass is taken to be as its part of the backward pass. */
	for (uint32_t i = 0; i < n; i++) {
		q->backward[i] = i ? f->arrival[i] - f->arrival[i - 1] : 0;
		q->numel[i] = r->eng.layout.tensors[i].numel;
		passes += f->backward[i];
	}
	for (uint32_t i = 0; i < n; i++)
		q->forward[i] = f->forward * (passes > 0 ? f->backward[i] / passes : 1.0 / n);
	q->search = (plan_search){.sim = {.n = n,
	                                  .forward = q->forward,
	                                  .backward = q->backward,
	                                  .window = REDUCER_WORKSPACES,
	                                  .beside_application = 1,
	                                  .beside_exchange = 1,
	                                  .each_layer = f->each_layer,
	                                  .steps = 4},
	                          .numel = q->numel,
	                          .max_numel = r->eng.compressor->max_bucket,
	                          .first_bytes = r->first_bucket_bytes,
	                          .bytes = r->bucket_bytes,
	                          .bucket = bucket_costs,
	                          .ctx = q};
	return GRADCOMP_OK;
}

gradcomp_status plan_solve_predict(reducer *r, const fit *f, const step_plan *p, double *step, double *exposed,
                                   gradcomp_error *err)
{
	question q;
	sim_output out = {0};
	gradcomp_status st = question_open(&q, r, f, err);
	if (st)
		return st;
	st = plan_search_predict(&q.search, p, 0, &out, err);
	*step = out.step;
	*exposed = out.exposed;
	question_close(&q);
	return st;
}

gradcomp_status plan_solve(reducer *r, const fit *f, schedule_method method, plan_found *out, plan_found *candidate,
                           gradcomp_error *err)
{
	question q;
	gradcomp_status st = question_open(&q, r, f, err);
	if (st)
		return st;
	st = plan_search_run(&q.search, method, out, candidate, err);
	question_close(&q);
	return st;
}
