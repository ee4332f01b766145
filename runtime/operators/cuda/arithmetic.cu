/* Element by element: sums, scaling, the operations of an all-reduce, memory, the
 * search for what is not finite. */
#include "operators/cuda/cuda_kinds.h"
#include "operators/cuda/each.h"

struct plus : element_wise {
	template <class T> __device__ T operator()(nothing, size_t, int, T y, T x) const { return T(y + x); }
};
/* For floats an unordered comparison is false, so a NaN on either side comes through. */
struct larger : element_wise {
	template <class T> __device__ T operator()(nothing, size_t, int, T y, T x) const
	{
		return y >= x || y != y ? y : x;
	}
};
struct smaller : element_wise {
	template <class T> __device__ T operator()(nothing, size_t, int, T y, T x) const
	{
		return y <= x || y != y ? y : x;
	}
};
struct either_bit : element_wise {
	template <class T> __device__ T operator()(nothing, size_t, int, T y, T x) const { return T(y | x); }
};

/* The same on 16-bit floats, in float. */
template <class KIND, class OP> struct half_op : element_wise {
	__device__ uint16_t operator()(nothing, size_t i, int w, uint16_t y, uint16_t x) const
	{
		return KIND::narrow(OP()({}, i, w, KIND::wide(y), KIND::wide(x)), 0);
	}
};

template <class T> struct times : element_wise {
	T a;
	explicit times(T factor) : a(factor) {}
	__device__ T operator()(nothing, size_t, int, T x, absent) const { return x * a; }
};
template <class KIND> struct half_times : element_wise {
	float a;
	explicit half_times(float factor) : a(factor) {}
	__device__ uint16_t operator()(nothing, size_t, int, uint16_t x, absent) const
	{
		return KIND::narrow(KIND::wide(x) * a, 0);
	}
};
struct plus_times : element_wise {
	float a;
	explicit plus_times(float factor) : a(factor) {}
	__device__ float operator()(nothing, size_t, int, float y, float x) const { return y + a * x; }
};
struct constant : element_wise {
	float a;
	explicit constant(float value) : a(value) {}
	__device__ float operator()(nothing, size_t, int, absent, absent) const { return a; }
};
struct within : element_wise {
	const float *limit;
	explicit within(const float *most) : limit(most) {}
	__device__ float operator()(nothing, size_t, int, float x, absent) const
	{
		const float most = *limit;
		return x > most ? most : x < -most ? -most : x;
	}
};

extern "C" void add_cuda(void *queue, float *y, const float *x, size_t n)
{
	each(queue, plus(), y, y, x, n);
}

extern "C" void scale_cuda(void *queue, float *x, float a, size_t n)
{
	each(queue, times<float>(a), x, x, no_operand, n);
}

template <class T, class F> static gradcomp_status reduce_as(void *queue, F f, void *acc, const void *in, size_t n)
{
	each(queue, f, static_cast<T *>(acc), static_cast<const T *>(acc), static_cast<const T *>(in), n);
	return GRADCOMP_OK;
}

template <class F>
static gradcomp_status reduce_number(void *queue, F f, void *acc, const void *in, size_t n, gradcomp_dtype dtype)
{
	switch (dtype) {
	case GRADCOMP_F32:
		return reduce_as<float>(queue, f, acc, in, n);
	case GRADCOMP_F64:
		return reduce_as<double>(queue, f, acc, in, n);
	case GRADCOMP_F16:
		return reduce_as<uint16_t>(queue, half_op<f16, F>(), acc, in, n);
	case GRADCOMP_BF16:
		return reduce_as<uint16_t>(queue, half_op<bf16, F>(), acc, in, n);
	case GRADCOMP_I32:
		return reduce_as<int32_t>(queue, f, acc, in, n);
	case GRADCOMP_I64:
		return reduce_as<int64_t>(queue, f, acc, in, n);
	case GRADCOMP_U8:
		return reduce_as<uint8_t>(queue, f, acc, in, n);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

extern "C" gradcomp_status reduce_cuda(void *queue, void *acc, const void *in, size_t n, gradcomp_dtype dtype,
                                       gradcomp_op op)
{
	/* Sums and bits of integers are those of unsigned ones, which wrap around. */
	const int word = dtype == GRADCOMP_I32, twice = dtype == GRADCOMP_I64, byte = dtype == GRADCOMP_U8;
	switch (op) {
	case GRADCOMP_SUM:
		return word    ? reduce_as<uint32_t>(queue, plus(), acc, in, n)
		       : twice ? reduce_as<uint64_t>(queue, plus(), acc, in, n)
		               : reduce_number(queue, plus(), acc, in, n, dtype);
	case GRADCOMP_MAX:
		return reduce_number(queue, larger(), acc, in, n, dtype);
	case GRADCOMP_MIN:
		return reduce_number(queue, smaller(), acc, in, n, dtype);
	case GRADCOMP_BOR:
		return word    ? reduce_as<uint32_t>(queue, either_bit(), acc, in, n)
		       : twice ? reduce_as<uint64_t>(queue, either_bit(), acc, in, n)
		       : byte  ? reduce_as<uint8_t>(queue, either_bit(), acc, in, n)
		               : GRADCOMP_ERR_UNSUPPORTED;
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

extern "C" gradcomp_status scale_as_cuda(void *queue, void *x, double a, size_t n, gradcomp_dtype dtype)
{
	uint16_t *h = static_cast<uint16_t *>(x);
	double *d = static_cast<double *>(x);
	switch (dtype) {
	case GRADCOMP_F32:
		scale_cuda(queue, static_cast<float *>(x), float(a), n);
		return GRADCOMP_OK;
	case GRADCOMP_F64:
		each(queue, times<double>(a), d, d, no_operand, n);
		return GRADCOMP_OK;
	case GRADCOMP_BF16:
		each(queue, half_times<bf16>(float(a)), h, h, no_operand, n);
		return GRADCOMP_OK;
	case GRADCOMP_F16:
		each(queue, half_times<f16>(float(a)), h, h, no_operand, n);
		return GRADCOMP_OK;
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

extern "C" void copy_cuda(void *queue, void *to, const void *from, size_t bytes)
{
	if (bytes)
		device_copy(queue, to, from, bytes);
}

extern "C" void fill_cuda(void *queue, float *x, float a, size_t n)
{
	each(queue, constant(a), x, no_operand, no_operand, n);
}

extern "C" void axpy_cuda(void *queue, float *y, float a, const float *x, size_t n)
{
	each(queue, plus_times(a), y, y, x, n);
}

extern "C" void clamp_cuda(void *queue, float *y, const float *x, const float *limit, size_t n)
{
	each(queue, within(limit), y, x, no_operand, n);
}

static __global__ void set_int(int *p, int v)
{
	if (!threadIdx.x)
		*p = v;
}

static __global__ void __launch_bounds__(THREADS) nonfinite_kernel(const float *x, size_t n, int *bad)
{
	enum { AT_ONCE = 8 };
	for (size_t i = size_t(blockIdx.x) * THREADS * AT_ONCE + threadIdx.x; i < n;
	     i += size_t(gridDim.x) * THREADS * AT_ONCE)
		if (most_key<AT_ONCE>(x, i, n) >= KEY_INF)
			*bad = 1;
}

extern "C" void nonfinite_cuda(void *queue, const float *x, size_t n, int *bad)
{
	launch(set_int, 1, WARP, 0, queue, bad, 0);
	if (n)
		launch(nonfinite_kernel, blocks_for(n, THREADS * 8, 1 << 20), THREADS, 0, queue, x, n, bad);
}
