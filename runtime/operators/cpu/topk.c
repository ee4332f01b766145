/* Exact selection of the k largest magnitudes. */
#include "select.h"

size_t KERNEL(topk_scratch)(size_t n, size_t k)
{
	return KERNEL(select_scratch)(n, k);
}

void KERNEL(topk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch)
{
	(void)queue;
	picked p;
	uint32_t key;
	if (!k)
		return;
	if (k >= n)
		KERNEL(select_take)(idx, val, x, NULL, n, (cut){0, n});
	else if (KERNEL(select_pick)(&p, &key, x, n, k, scratch))
		KERNEL(select_take)(idx, val, p.val, p.idx, p.n, KERNEL(select_cut)(p.val, p.n, k));
	else
		KERNEL(select_take)(idx, val, x, NULL, n, KERNEL(select_cut)(x, n, k));
}
