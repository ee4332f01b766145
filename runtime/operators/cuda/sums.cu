/* Numbers about a vector: every block sums its share, one block sums those, both in
 * an order fixed by n. */
#include "operators/cuda/cuda_device.h"

enum { PARTS = 1024, SHARE = 8192, AT_ONCE = 8 };
enum { SUM_ABS, SUM_SQUARES };

static unsigned parts_of(size_t n)
{
	return blocks_for(n, SHARE, PARTS);
}

template <int OF> INLINE double term(float x)
{
	return OF == SUM_ABS ? double(bits_float(key_of(x))) : double(x) * x;
}

template <int OF> static __global__ void __launch_bounds__(THREADS) sum_kernel(double *part, const float *x, size_t n)
{
	SHARED(double, room, WARP);
	double s[AT_ONCE] = {0};
	size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x;
	const size_t step = size_t(gridDim.x) * THREADS * AT_ONCE;
	for (; i < n; i += step) {
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (i + u * THREADS < n)
				s[u] += term<OF>(x[i + u * THREADS]);
	}
#pragma unroll
	for (int u = 1; u < AT_ONCE; u++)
		s[0] += s[u];
	double all = block_fold(s[0], sum_of(), room);
	if (!threadIdx.x)
		part[blockIdx.x] = all;
}

static __global__ void __launch_bounds__(THREADS) sum_parts_kernel(double *out, const double *part, unsigned parts)
{
	SHARED(double, room, WARP);
	double s = 0;
	for (unsigned i = threadIdx.x; i < parts; i += THREADS)
		s += part[i];
	s = block_fold(s, sum_of(), room);
	if (!threadIdx.x)
		*out = s;
}

static __global__ void __launch_bounds__(THREADS) absmax_kernel(uint32_t *part, const float *x, size_t n)
{
	SHARED(uint32_t, room, WARP);
	uint32_t most = 0;
	const size_t step = size_t(gridDim.x) * THREADS * AT_ONCE;
	for (size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x; i < n; i += step) {
		uint32_t key = most_key<AT_ONCE>(x, i, n);
		most = key > most ? key : most;
	}
	most = block_fold(most, largest_of(), room);
	if (!threadIdx.x)
		part[blockIdx.x] = most;
}

extern "C" size_t sum_scratch_cuda(size_t n)
{
	return (parts_of(n) * sizeof(double) + 63) / 64 * 64;
}

template <int OF> static void sum_as(void *queue, double *out, const float *x, size_t n, void *scratch)
{
	double *part = static_cast<double *>(scratch);
	launch(sum_kernel<OF>, parts_of(n), THREADS, 0, queue, part, x, n);
	launch(sum_parts_kernel, 1, THREADS, 0, queue, out, part, parts_of(n));
}

extern "C" void sum_abs_cuda(void *queue, double *out, const float *x, size_t n, void *scratch)
{
	sum_as<SUM_ABS>(queue, out, x, n, scratch);
}

extern "C" void sum_squares_cuda(void *queue, double *out, const float *x, size_t n, void *scratch)
{
	sum_as<SUM_SQUARES>(queue, out, x, n, scratch);
}

extern "C" void absmax_cuda(void *queue, float *out, const float *x, size_t n, void *scratch)
{
	uint32_t *part = static_cast<uint32_t *>(scratch);
	launch(absmax_kernel, parts_of(n), THREADS, 0, queue, part, x, n);
	/* The largest of what are floats without a sign. */
	launch(absmax_kernel, 1, THREADS, 0, queue, reinterpret_cast<uint32_t *>(out), reinterpret_cast<float *>(part),
	       size_t(parts_of(n)));
}
