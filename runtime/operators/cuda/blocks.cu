/* Blocks of numbers that are chosen together. */
#include "operators/cuda/cuda_device.h"

enum { SHORT = 1024, AT_ONCE = 4 };

/* BLOCK: all of the thread block at one block of numbers; else a warp. */
template <bool BLOCK>
static __global__ void __launch_bounds__(THREADS)
	blocks_sum_kernel(float *out, const float *x, size_t n, size_t width, float most)
{
	SHARED(double, room, WARP);
	const size_t blocks = (n + width - 1) / width;
	const unsigned me = BLOCK ? threadIdx.x : lane_id(), lanes = BLOCK ? THREADS : WARP;
	const size_t step = BLOCK ? gridDim.x : size_t(gridDim.x) * (THREADS / WARP);
	for (size_t b = BLOCK ? blockIdx.x : size_t(blockIdx.x) * (THREADS / WARP) + warp_id(); b < blocks; b += step) {
		const size_t from = b * width, to = n - from < width ? n : from + width;
		double s[AT_ONCE] = {0};
		for (size_t i = from + me; i < to; i += lanes * AT_ONCE) {
#pragma unroll
			for (unsigned u = 0; u < AT_ONCE; u++)
				if (i + u * lanes < to)
					s[u] += double(bits_float(key_of(x[i + u * lanes])));
		}
#pragma unroll
		for (int u = 1; u < AT_ONCE; u++)
			s[0] += s[u];
		if (BLOCK) {
			s[0] = block_fold(s[0], sum_of(), room);
			__syncthreads();
		} else {
			s[0] = warp_fold(s[0], sum_of());
		}
		if (!me)
			out[b] = float(s[0] < most ? s[0] : double(most));
	}
}

extern "C" void blocks_sum_abs_cuda(void *queue, float *out, const float *x, size_t n, size_t width, float most)
{
	const size_t blocks = n ? (n + width - 1) / width : 0;
	if (blocks && width > SHORT)
		launch(blocks_sum_kernel<true>, blocks_for(blocks, 1, 1 << 20), THREADS, 0, queue, out, x, n, width,
		       most);
	else if (blocks)
		launch(blocks_sum_kernel<false>, blocks_for(blocks, THREADS / WARP, 1 << 20), THREADS, 0, queue, out, x,
		       n, width, most);
}

INLINE size_t quotient(size_t a, size_t b)
{
	return (a | b) <= UINT32_MAX ? uint32_t(a) / uint32_t(b) : a / b;
}

static __global__ void __launch_bounds__(THREADS)
	blocks_gather_kernel(float *out, const float *x, const uint32_t *idx, size_t total, size_t n, size_t width)
{
	for (size_t i = thread_id(); i < total; i += thread_count()) {
		const size_t j = quotient(i, width), at = idx[j] * width + (i - j * width);
		out[i] = at < n ? x[at] : 0;
	}
}

static __global__ void __launch_bounds__(THREADS)
	blocks_scatter_kernel(float *y, const uint32_t *idx, const float *val, size_t total, size_t n, size_t width)
{
	for (size_t i = thread_id(); i < total; i += thread_count()) {
		const size_t j = quotient(i, width), at = idx[j] * width + (i - j * width);
		if (at < n)
			y[at] = val ? val[i] : 0;
	}
}

extern "C" void blocks_gather_cuda(void *queue, float *out, const float *x, const uint32_t *idx, size_t k, size_t n,
                                   size_t width)
{
	if (k && width)
		launch(blocks_gather_kernel, blocks_for(k * width, THREADS, 1 << 20), THREADS, 0, queue, out, x, idx,
		       k * width, n, width);
}

extern "C" void blocks_scatter_cuda(void *queue, float *y, const uint32_t *idx, const float *val, size_t k, size_t n,
                                    size_t width)
{
	if (k && width)
		launch(blocks_scatter_kernel, blocks_for(k * width, THREADS, 1 << 20), THREADS, 0, queue, y, idx, val,
		       k * width, n, width);
}
