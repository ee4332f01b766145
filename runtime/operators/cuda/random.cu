/* random_normal: one thread a block of the generator. Permutations. */
#include "operators/cuda/cuda_random.h"

#include "operators/cpu/feistel.h"

static __global__ void __launch_bounds__(THREADS) random_kernel(float *out, size_t n, drawing d)
{
	const unsigned skip = unsigned(d.first % 4);
	const size_t blocks = (n + skip + 3) / 4;
	for (size_t b = thread_id(); b < blocks; b += thread_count()) {
		uint32_t w[4];
		float v[4];
		draw_block(w, d, d.first - skip + 4 * b);
#pragma unroll
		for (int j = 0; j < 4; j += 2) {
			double c, s, radius = sqrt(-2 * log_fixed((w[j] + 1.0) * 0x1p-32));
			circle(w[j + 1], &c, &s);
			v[j] = float(radius * c);
			v[j + 1] = float(radius * s);
		}
#pragma unroll
		for (int j = 0; j < 4; j++) {
			size_t i = 4 * b + j - skip;
			if (4 * b + j >= skip && i < n)
				out[i] = v[j];
		}
	}
}

extern "C" void random_normal_cuda(void *queue, float *out, size_t n, uint64_t seed, uint64_t stream, uint64_t first)
{
	if (n)
		launch(random_kernel, blocks_for(n / 4 + 2, THREADS, 1 << 20), THREADS, 0, queue, out, n,
		       drawing{seed, stream, first});
}

static __global__ void __launch_bounds__(THREADS) indices_kernel(uint32_t *idx, size_t k, permutation p, drawing d)
{
	uint32_t w[4];
#pragma unroll
	for (int i = 0; i < PERMUTATION_ROUNDS; i += 2) {
		draw_block(w, d, d.first + 2 * i);
		permutation_key(&p, i, w);
	}
	for (size_t j = thread_id(); j < k; j += thread_count())
		idx[j] = permutation_image(&p, j);
}

extern "C" void random_indices_cuda(void *queue, uint32_t *idx, size_t k, size_t n, uint64_t seed, uint64_t stream,
                                    uint64_t which)
{
	if (k)
		launch(indices_kernel, blocks_for(k, 4 * THREADS, 1 << 16), THREADS, 0, queue, idx, k,
		       permutation_of(n), drawing{seed, stream, 16 * which});
}
