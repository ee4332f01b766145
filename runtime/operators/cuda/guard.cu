/* Does something or leaves it alone as a word says, and computes such words. A kernel whose word says no reads that
 * word and ends. */
#include "operators/cuda/cuda_device.h"

static __global__ void any_set_kernel(int *out, const unsigned char *words, size_t width, size_t stride, size_t n)
{
	int any = 0;
	for (size_t i = threadIdx.x; i < n; i += WARP)
		for (size_t k = 0; k < width; k++)
			any |= words[i * stride + k] != 0;
	any = __ballot_sync(ALL_LANES, any) != 0;
	if (!threadIdx.x)
		*out = any;
}

extern "C" void any_set_cuda(void *queue, int *out, const void *words, size_t width, size_t stride, size_t n)
{
	launch(any_set_kernel, 1, WARP, 0, queue, out, static_cast<const unsigned char *>(words), width, stride, n);
}

static __global__ void put_flag_kernel(unsigned char *to, uint64_t bits, int bytes, const int *word)
{
	if (int(threadIdx.x) < bytes)
		to[threadIdx.x] = *word ? static_cast<unsigned char>(bits >> (8 * threadIdx.x)) : 0;
}

extern "C" void put_flag_cuda(void *queue, void *to, gradcomp_dtype dtype, const int *word)
{
	launch(put_flag_kernel, 1, WARP, 0, queue, static_cast<unsigned char *>(to), flag_bits(dtype),
	       int(gradcomp_dtype_bytes(dtype)), word);
}

static __global__ void __launch_bounds__(THREADS)
	copy_if_kernel(float *to, const float *from, size_t n, const int *word, int set)
{
	enum { AT_ONCE = 4 };
	const size_t step = size_t(gridDim.x) * THREADS * AT_ONCE;
	if ((*word != 0) != set)
		return;
	for (size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x; i < n; i += step) {
		float v[AT_ONCE];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			v[u] = i + u * THREADS < n ? from[i + u * THREADS] : 0;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (i + u * THREADS < n)
				to[i + u * THREADS] = v[u];
	}
}

extern "C" void copy_if_cuda(void *queue, float *to, const float *from, size_t n, const int *word, int set)
{
	if (n)
		launch(copy_if_kernel, blocks_for(n, THREADS * 4, 1 << 10), THREADS, 0, queue, to, from, n, word,
		       int(set != 0));
}

static __global__ void __launch_bounds__(THREADS) fill_if_kernel(float *x, float a, size_t n, const int *word)
{
	if (*word)
		for (size_t i = thread_id(); i < n; i += size_t(gridDim.x) * THREADS)
			x[i] = a;
}

extern "C" void fill_if_cuda(void *queue, float *x, float a, size_t n, const int *word)
{
	if (n)
		launch(fill_if_kernel, blocks_for(n, THREADS, 1 << 10), THREADS, 0, queue, x, a, n, word);
}
