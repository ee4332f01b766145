/* Selection: the k largest magnitudes. */
#include "operators/cpu/select.h"

size_t KERNEL(topk_scratch)(size_t n, size_t k)
{
	return KERNEL(select_scratch)(n, k);
}

void KERNEL(topk)(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch)
{
	(void)queue;
	picked p = {x, NULL, n};
	sink s = {idx, val, 0, k};
	uint32_t key;
	if (!k)
		return;
	if (k >= n)
		KERNEL(select_take)(&s, &p, (cut){0, n});
	else if (KERNEL(select_pick)(&p, &key, x, n, k, scratch))
		KERNEL(select_take)(&s, &p, KERNEL(select_cut)(p.val, p.n, k, NULL));
	else
		KERNEL(select_take)(&s, &p, KERNEL(select_cut)(x, n, k, scratch));
}
