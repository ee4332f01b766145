/* Adds up what the tasks of a bucket cost. */
#include "cost/cost_internal.h"

#include "base/error.h"

#include <stdbool.h>
#include <string.h>

/* Returns how long payloads without a fixed length are expected to be, as a share of their most: the compressor's
 * cost() says how many bytes a step has in all. 1: as long as they may be. */
static double expected_share(const cost_model *c, const gradcomp_bucket *b, uint64_t step, const gradcomp_plan *plan)
{
	const struct gradcomp_compressor_v1 *p = c->plugins[0]->compressor;
	gradcomp_cost cost = {.struct_size = sizeof cost};
	double fixed = 0, bound = 0;
	for (uint32_t k = 0; k < plan->nrounds; k++) {
		const gradcomp_round *rd = &plan->rounds[k];

		if (rd->pattern == GRADCOMP_GATHERED && !(rd->flags & GRADCOMP_ROUND_FIXED))
			bound += (double)task_round_bytes(rd);
		else
			fixed += (double)task_round_bytes(rd);
	}
	if (bound <= 0 || !p->cost || p->cost(c->instance, b, step, &cost, NULL) || worthless(cost.wire_bytes) ||
	    cost.wire_bytes < fixed || cost.wire_bytes - fixed > bound)
		return 1;
	return (cost.wire_bytes - fixed) / bound;
}

/* Returns what a payload of a compressor that else codes numbers takes, one way: as much as coding them. */
static double coded_whole(const cost_model *c, const gradcomp_round *rd)
{
	const bool codes = rd->pattern == GRADCOMP_SUMMED && !(rd->flags & GRADCOMP_ROUND_IN_PLACE);
	return codes && c->curve->code.b > 0 ? linear_at(&c->curve->code, (double)rd->count) : 0;
}

/* Adds up what one step's tasks take. */
static gradcomp_status add_tasks(cost_model *c, const gradcomp_bucket *b, uint64_t numel, uint64_t step,
                                 const gradcomp_plan *plan, const task *tasks, uint32_t n, double *seconds,
                                 bucket_cost *sum, gradcomp_error *err)
{
	const double rounds = plan->nrounds, share = expected_share(c, b, step, plan);
	const call levels = {.primitive = GRADCOMP_CAN_SHARD, .bytes = numel * sizeof(float), .coded = 1};
	double look = c->curve && !c->two_levels ? 0 : 4.0 * (double)numel * c->machine->memory, both = 0;
	gradcomp_status st = GRADCOMP_OK;
	if (c->two_levels)
		st = cost_call(c, &levels, &both, sum, err);
	for (uint32_t t = 0; !st && t < n; t++) {
		const gradcomp_round *rd = &plan->rounds[tasks[t].round];
		double payload = (double)task_round_bytes(rd) * (rd->flags & GRADCOMP_ROUND_FIXED ? 1 : share),
		       took = 0;

		switch (tasks[t].kind) {
		case TASK_BEGIN:
			took = look;
			break;
		case TASK_ENCODE:
			took = c->curve ? linear_at(&c->curve->encode, (double)b->numel) / rounds + coded_whole(c, rd)
			                : 0;
			break;
		case TASK_DECODE:
			took = c->curve ? linear_at(&c->curve->decode, (double)b->numel) / rounds + coded_whole(c, rd)
			                : 0;
			if (c->curve && rd->pattern == GRADCOMP_GATHERED)
				took += c->curve->gathered * payload * (c->layout.nranks - 1);
			break;
		case TASK_EXCHANGE:
			st = cost_round(c, rd, tasks[t].round, payload, &took, sum, err);
			sum->payload += payload;
			sum->packed += rd->pattern == GRADCOMP_CODED
			                       ? (double)c->plugins[0]->compressor->code_bound(c->instance, rd->count)
			                       : payload;
			break;
		case TASK_REDUCE_LOCAL:
			took = both / 2;
			st = cost_nonfinite(c, &took, sum, err);
			break;
		case TASK_ALLGATHER_LOCAL:
			took = both / 2;
			break;
		default: /* ENTER, LEAVE, FINISH are in the lines */
			break;
		}
		seconds[t] += took;
		if (task_exchanges(tasks[t].kind))
			sum->exchange += took;
		else if (tasks[t].kind == TASK_BEGIN || tasks[t].kind == TASK_ENCODE)
			sum->encode += took;
		else
			sum->decode += took;
	}
	return st;
}

gradcomp_status cost_bucket(cost_model *c, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
                            bucket_cost *sum, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *p = c->plugins[0]->compressor;
	const gradcomp_tensor *last = &c->tensors[end - 1];
	gradcomp_bucket b = {.struct_size = sizeof b,
	                     .index = index,
	                     .first = first,
	                     .ntensors = end - first,
	                     .offset = c->tensors[first].offset};
	double both[STEPS][MAX_TASKS] = {{0}};
	bucket_cost step[STEPS] = {{0}};
	uint64_t numel = 0;
	gradcomp_status st = GRADCOMP_OK;
	int same = 1;
	b.numel = last->offset + last->numel - b.offset;
	for (uint32_t i = first; i < end; i++)
		numel += c->whole[i];
	if (p->max_bucket && b.numel > p->max_bucket)
		return error_set(err, GRADCOMP_ERR_RANGE,
		                 "bucket %u has %llu numbers; compressor '%s' counts up to %llu", index,
		                 (unsigned long long)b.numel, p->info.name, (unsigned long long)p->max_bucket);
	for (int s = 0; s < STEPS && same; s++) {
		gradcomp_plan plan = {.struct_size = sizeof plan};
		task list[MAX_TASKS];
		uint32_t n;

		st = p->plan(c->instance, &b, STEP + (uint64_t)s, &plan, err);
		if (!st)
			st = task_list_check_plan(p, c->layout.patterns, b.numel, &plan, err);
		if (st)
			return st;
		n = (uint32_t)task_list_make(&plan, c->two_levels, list);
		/* Steps with other rounds are not mixed. */
		same = !s || n == out->ntasks;
		if (same)
			st = add_tasks(c, &b, numel, STEP + (uint64_t)s, &plan, list, n, both[s], &step[s], err);
		if (st)
			return st;
		if (!s) {
			memcpy(out->tasks, list, n * sizeof *list);
			out->ntasks = n;
		}
	}
	for (int s = 0; s < STEPS; s++) {
		double part = same ? 1.0 / STEPS : s == 0;

		for (uint32_t t = 0; t < out->ntasks; t++)
			out->seconds[t] = (s ? out->seconds[t] : 0) + part * both[s][t];
		sum->encode += part * step[s].encode;
		sum->exchange += part * step[s].exchange;
		sum->decode += part * step[s].decode;
		sum->payload += part * step[s].payload;
		sum->packed += part * step[s].packed;
		sum->sent += part * step[s].sent;
		sum->left += part * step[s].left;
	}
	return GRADCOMP_OK;
}
