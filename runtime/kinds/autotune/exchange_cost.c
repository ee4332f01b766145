#include "kinds/autotune/exchange_cost.h"

#include "plugin/code_view.h"
#include "schedule/task_list.h"
#include "gradcomp/collective.h"

#include <math.h>

enum { USUAL = 1 << 22 }; /* bytes of an all-reduce whose load stands for the line */

static double sum(const double x[2])
{
	return x[0] + x[1];
}

/* Messages and bytes on the critical path of one call; as a ring's, where the plugin does
 * not say. */
static void exchange_cost_call(const candidate *k, const exchange_cost *w, uint32_t primitive, double bytes,
                               double *messages, double *moved)
{
	gradcomp_call_load l = {.struct_size = sizeof l};
	const plugin *p = k->plugins[1];
	double P = w->nranks, others = P - 1;
	gradcomp_status st = GRADCOMP_ERR_UNSUPPORTED;
	if (p->collective->predict)
		st = p->collective->predict(k->specs[1]->values, w->nranks, w->nnodes, primitive, (uint64_t)bytes, &l,
		                            NULL);
	int gathers = primitive == GRADCOMP_CAN_ALLGATHER, merges = primitive == GRADCOMP_CAN_MERGE;
	*messages = gathers ? others : merges ? 2 * log2(P) : 2 * others;
	*moved = bytes * (gathers ? others : merges ? 2 * log2(P) : 2 * others / P);
	if (!st && isfinite(sum(l.messages) + sum(l.bytes)) && sum(l.messages) >= 0 && sum(l.bytes) >= 0) {
		*messages = sum(l.messages);
		*moved = w->nnodes > 1 ? l.bytes[1] : l.bytes[0];
	}
}

exchange_cost exchange_cost_of(const tuner *c, uint32_t k)
{
	int fitted = k && !c->config.candidate[k].dense && c->network.fit_bytes && c->choice.metrics.fitted[1] > 0;
	const double *line = fitted ? c->choice.metrics.fitted : c->choice.metrics.line,
		     usual = fitted ? c->network.fit_bytes : USUAL;
	exchange_cost w = {.nranks = c->group->nranks,
	                   .nnodes = channel_links(c->parts.partition->sub[0].r->eng.coll_ctx.channel)->nnodes};
	double messages, moved;
	exchange_cost_call(&c->config.candidate[0], &w, GRADCOMP_CAN_ALLREDUCE, usual, &messages, &moved);
	w.message = messages > 0 && line[0] > 0 ? line[0] / messages : 0;
	w.byte = moved > 0 && line[1] > 0 ? line[1] * usual / moved : 0;
	return w;
}

double exchange_cost_seconds(const candidate *k, const exchange_cost *w, const candidate_load *l, uint64_t numel)
{
	double s = 0;
	for (int p = GRADCOMP_SUMMED; p <= GRADCOMP_CODED; p++) {
		const uint32_t serves = k->plugins[1]->collective->serves,
			       sums = p == GRADCOMP_CODED ? code_view_sums(k->plugins[0]->compressor, serves) : 0;
		double messages, moved, floats = (double)numel * sizeof(float);
		if (l->bytes[p] <= 0)
			continue;
		exchange_cost_call(k, w, task_round_primitive((gradcomp_pattern)p, serves) | sums,
		                   p == GRADCOMP_CODED ? floats : l->bytes[p], &messages, &moved);
		if (p == GRADCOMP_CODED)
			moved *= l->bytes[p] / floats;
		s += w->byte * moved + w->message * messages * l->exchanges;
	}
	return s;
}

double exchange_cost_size(const tuner *c, const candidate *k, const exchange_cost *w, const candidate_load *l,
                          uint64_t numel, double n)
{
	const exchange_cost bytes = {.byte = 1, .nranks = w->nranks, .nnodes = w->nnodes};
	double messages, moved;
	exchange_cost_call(&c->config.candidate[0], w, GRADCOMP_CAN_ALLREDUCE, USUAL, &messages, &moved);
	return moved > 0 && n > 0 ? exchange_cost_seconds(k, &bytes, l, numel) / n * USUAL / moved : 0;
}

double exchange_cost_base(const tuner *c, const exchange_cost *w)
{
	double messages, moved;
	exchange_cost_call(&c->config.candidate[0], w, GRADCOMP_CAN_ALLREDUCE, USUAL, &messages, &moved);
	return w->message * messages;
}
