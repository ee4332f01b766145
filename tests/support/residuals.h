/* Adds up what the reducers of a run hold back, wherever they do: in error memory, in that of their shards, in the
 * collective's; and whether nothing is lost. */
#ifndef TESTS_SUPPORT_RESIDUALS_H
#define TESTS_SUPPORT_RESIDUALS_H

#include "tests/support/small_model.h"

#include "reducer/reducer.h"
#include "step/levels/hierarchical_internal.h"

#include <math.h>

enum { MEMORIES = 4096 }; /* numbers of the model, at most */

/* Adds what a rank keeps, in units of the sum, onto total[], by place in the layout. */
static void memory_add(double *total, const reducer *red)
{
	for (const engine *k = red->eng.list.shards ? red->eng.list.shards : &red->eng; k; k = k->next)
		for (uint32_t i = 0; engine_has_error(k) && i < k->list.nbuckets; i++) {
			uint64_t at = red->eng.list.buckets[i].pub.offset + k->list.buckets[i].begin;
			float e[MEMORIES];
			engine_read(k, 0, k->list.buckets[i].pub.offset, k->list.buckets[i].pub.numel, e, NULL);
			for (uint64_t j = 0; j < k->list.buckets[i].pub.numel; j++)
				total[at + j] += e[j];
		}
	for (uint32_t i = 0; i < red->eng.list.nbuckets; i++) {
		const bucket *b = &red->eng.list.buckets[i];
		uint64_t P = (uint64_t)red->eng.layout.nranks, n = b->pub.numel, me = (uint64_t)red->eng.layout.rank;
		uint64_t begin = n / P * me + (me < n % P ? me : n % P);
		for (uint64_t j = 0; j < b->nserver_error; j++)
			total[b->pub.offset + begin + j] += b->server_error[j];
	}
}

/* With all ranks standing still, as below. */
static void memories(model *const *models, int P, double *total)
{
	memset(total, 0, MEMORIES * sizeof *total);
	for (int r = 0; r < P; r++)
		memory_add(total, reducer_of(models[r]->red));
}

/* How far what went into a step is from what came out and is held. */
__attribute__((unused)) static double memories_off(model *const *models, int P, int step, const double *before,
                                                   const double *after)
{
	const reducer *red = reducer_of(models[0]->red);
	int nodes = red->eng.list.shards ? red->eng.list.shards->layout.nranks : 0;
	double weight = nodes ? (double)nodes / P : 1, shares = nodes ? nodes : P, worst = 0;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++) {
			uint64_t at = red->eng.layout.tensors[T - 1 - t].offset + i;
			double in = before[at];
			for (int r = 0; r < P; r++)
				in += weight * gradient(r, step, t, i);
			double off = fabs(in - shares * models[0]->grad[t][i] - after[at]);
			worst = off <= worst ? worst : off;
		}
	return worst;
}

#endif
