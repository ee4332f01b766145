/* With numbers that other operators have found: none of these waits for the host. */
#include "operators/cuda/each.h"

static __global__ void moment_kernel(float *out, const double *sum, double n, double a, uint32_t kind)
{
	if (threadIdx.x)
		return;
	const double m = *sum / n;
	*out = float(kind == GRADCOMP_MEAN ? a * m : kind == GRADCOMP_ROOT ? a * sqrt(m) : a / sqrt(m));
}

extern "C" void moment_cuda(void *queue, float *out, const double *sum, double n, double a, uint32_t kind)
{
	launch(moment_kernel, 1, WARP, 0, queue, out, sum, n, a, kind);
}

struct times_found : element_wise {
	const float *a;
	explicit times_found(const float *factor) : a(factor) {}
	__device__ float operator()(nothing, size_t, int, float x, absent) const { return *a * x; }
};
struct plus_times_found : element_wise {
	const float *a;
	explicit plus_times_found(const float *factor) : a(factor) {}
	__device__ float operator()(nothing, size_t, int, float y, float x) const { return y + *a * x; }
};

extern "C" void scale_by_cuda(void *queue, float *y, const float *a, const float *x, size_t n)
{
	each(queue, times_found(a), y, x, no_operand, n);
}

extern "C" void axpy_by_cuda(void *queue, float *y, const float *a, const float *x, size_t n)
{
	each(queue, plus_times_found(a), y, y, x, n);
}

static __global__ void __launch_bounds__(THREADS)
	range_kernel(int *fault, const float *x, size_t n, float least, float most)
{
	enum { AT_ONCE = 8 };
	const size_t step = size_t(gridDim.x) * THREADS * AT_ONCE;
	for (size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x; i < n; i += step) {
		float v[AT_ONCE];
		bool bad = false;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			v[u] = x[i + u * THREADS < n ? i + u * THREADS : i];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			bad |= !(v[u] >= least && v[u] <= most);
		if (bad)
			*fault = 1;
	}
}

extern "C" void range_check_cuda(void *queue, int *fault, const float *x, size_t n, float least, float most)
{
	if (n)
		launch(range_kernel, blocks_for(n, THREADS * 8, 1 << 20), THREADS, 0, queue, fault, x, n, least, most);
}
