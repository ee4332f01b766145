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
	for (size_t i = thread_id(); i < n; i += thread_count())
		if (!(x[i] >= least && x[i] <= most))
			*fault = 1;
}

extern "C" void range_check_cuda(void *queue, int *fault, const float *x, size_t n, float least, float most)
{
	if (n)
		launch(range_kernel, blocks_for(n, THREADS * 4, 1 << 20), THREADS, 0, queue, fault, x, n, least, most);
}
