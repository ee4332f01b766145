/* What a step would take with a plan: the simulator, on what was measured. */
#include "reducer/bucketing/plan_solve.h"

#include "schedule/task_list.h"
#include "schedule/sim.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

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

gradcomp_status plan_solve_rounds(gradcomp_reducer *r, const fit *f, uint32_t index, uint32_t first, uint32_t end,
                             gradcomp_bucket *b, gradcomp_plan *plan, gradcomp_error *err)
{
	const gradcomp_tensor *from = &r->tensors[first], *to = &r->tensors[end - 1];
	*b = (gradcomp_bucket){.struct_size = sizeof *b, .index = index, .first = first, .ntensors = end - first,
	                       .offset = from->offset, .numel = to->offset + to->numel - from->offset};
	memset(plan, 0, sizeof *plan);
	plan->struct_size = sizeof *plan;
	if (r->shards) {
		shard_plan(f, (double)b->numel, plan);
		return GRADCOMP_OK;
	}
	gradcomp_status st = r->compressor->plan(r->instance, b, r->step, plan, err);
	return st ? st : task_list_check_plan(r->compressor, r->layout.patterns, b->numel, plan, err);
}

static double cost(const fit *f, const gradcomp_plan *plan, double numel, const task *t)
{
	if (t->kind == TASK_EXCHANGE)
		return gradcomp_line_at(&f->exchange, (double)round_bytes(&plan->rounds[t->round]));
	if (t->kind == TASK_REDUCE_LOCAL || t->kind == TASK_ALLGATHER_LOCAL)
		return gradcomp_line_at(t->kind == TASK_REDUCE_LOCAL ? &f->reduce : &f->spread, numel);
	return gradcomp_line_at(&f->compute[compute_kind(t)], numel);
}

gradcomp_status plan_solve_predict(gradcomp_reducer *r, const fit *f, const step_plan *p, double *step, double *exposed,
                              gradcomp_error *err)
{
	uint32_t n = f->ntensors;
	sim_bucket *buckets = calloc(p->nbuckets, sizeof *buckets);
	double *forward = calloc(n, sizeof *forward), *backward = calloc(n, sizeof *backward), passes = 0;
	sim_output out = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (!buckets || !forward || !backward) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to simulate %u buckets", p->nbuckets);
		goto done;
	}
	for (uint32_t b = 0, first = 0; b < p->nbuckets; first = p->end[b++]) {
		sim_bucket *s = &buckets[b];
		gradcomp_bucket pub;
		gradcomp_plan plan;
		st = plan_solve_rounds(r, f, b, first, p->end[b], &pub, &plan, err);
		if (st)
			goto done;
		s->ntasks = (uint32_t)task_list_make(&plan, r->shards != NULL, s->tasks);
		for (uint32_t k = 0; k < s->ntasks; k++)
			s->seconds[k] = cost(f, &plan, (double)pub.numel, &s->tasks[k]);
	}
	/* When gradients come, which is not always when they were made; a layer's part of the
	 * forward pass is taken to be as its part of the backward pass. */
	for (uint32_t i = 0; i < n; i++) {
		backward[i] = i ? f->arrival[i] - f->arrival[i - 1] : 0;
		passes += f->backward[i];
	}
	for (uint32_t i = 0; i < n; i++)
		forward[i] = f->forward * (passes > 0 ? f->backward[i] / passes : 1.0 / n);
	const sim_input in = {.n = n, .forward = forward, .backward = backward, .plan = p, .window = REDUCER_WORKSPACES,
	                      .buckets = buckets, .beside_application = 1, .beside_exchange = 1,
	                      .each_layer = f->each_layer, .steps = 4};
	st = sim_run(&in, 0, &out, err);
	*step = out.step;
	*exposed = out.exposed;
done:
	free(buckets);
	free(forward);
	free(backward);
	return st;
}
