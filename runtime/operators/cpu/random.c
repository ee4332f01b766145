/* Random numbers by counter: normal numbers and permutations. */
#include "operators/cpu/box_muller.h"
#include "operators/cpu/feistel.h"
#include "operators/cpu/philox.h"

/* Numbers 2j and 2j+1 are a pair made of uniform numbers 2j (its radius, in
 * (0, 1]) and 2j+1 (its angle). */
void KERNEL(random_normal)(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	(void)queue;
	uint32_t w[4];
	float pair[2] = {0};
	for (size_t i = 0; i < n; i++) {
		uint64_t at = first + i;
		if (!i || at % 4 == 0)
			random_draw(w, seed, stream, at / 4);
		if (!i || at % 2 == 0) {
			uint64_t p = at % 4 / 2 * 2;
			double c, s, radius = __builtin_sqrt(-2 * log_fixed((w[p] + 1.0) * 0x1p-32));
			circle(w[p + 1], &c, &s);
			pair[0] = (float)(radius * c);
			pair[1] = (float)(radius * s);
		}
		out[i] = pair[at % 2];
	}
}

void KERNEL(random_indices)(void *queue, uint32_t *idx, size_t k, size_t n, uint64_t seed, uint64_t stream,
                            uint64_t which)
{
	(void)queue;
	permutation p = permutation_of(n);
	uint32_t w[4];
	for (int i = 0; i < PERMUTATION_ROUNDS; i += 2) {
		random_draw(w, seed, stream, 4 * which + (uint64_t)i / 2);
		permutation_key(&p, i, w);
	}
	for (size_t j = 0; j < k; j++)
		idx[j] = permutation_image(&p, j);
}
