/* Between float and the shorter types. */
#include "operators/cuda/cuda_kinds.h"
#include "operators/cuda/each.h"

template <class KIND> struct narrowing : element_wise {
	int saturate;
	explicit narrowing(int s) : saturate(s) {}
	__device__ typename KIND::type operator()(nothing, size_t, int, float x, absent) const
	{
		return KIND::narrow(x, saturate);
	}
};
template <class KIND> struct widening : element_wise {
	__device__ float operator()(nothing, size_t, int, typename KIND::type x, absent) const { return KIND::wide(x); }
};

/* A cast of what has been scaled, and held within a limit unless it is 0. */
template <class KIND> struct narrowing_scaled : narrowing<KIND> {
	float a, limit;
	narrowing_scaled(float factor, float most) : narrowing<KIND>(most > 0), a(factor), limit(most) {}
	__device__ typename KIND::type operator()(element_wise::nothing none, size_t i, int w, float x, absent b) const
	{
		float v = x * a;
		if (limit > 0 && key_of(v) < KEY_INF)
			v = v > limit ? limit : v < -limit ? -limit : v;
		return narrowing<KIND>::operator()(none, i, w, v, b);
	}
};

template <class KIND> static gradcomp_status narrow(void *queue, void *out, const float *in, size_t n, int saturate)
{
	each(queue, narrowing<KIND>(saturate), static_cast<typename KIND::type *>(out), in, no_operand, n);
	return GRADCOMP_OK;
}

template <class KIND>
static gradcomp_status scale_narrow(void *queue, void *out, const float *in, size_t n, float a, float limit)
{
	each(queue, narrowing_scaled<KIND>(a, limit), static_cast<typename KIND::type *>(out), in, no_operand, n);
	return GRADCOMP_OK;
}

template <class KIND> static gradcomp_status widen(void *queue, float *out, const void *in, size_t n)
{
	each(queue, widening<KIND>(), out, static_cast<const typename KIND::type *>(in), no_operand, n);
	return GRADCOMP_OK;
}

extern "C" gradcomp_status cast_from_f32_cuda(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to,
                                              int saturate)
{
	switch (to) {
	case GRADCOMP_F32:
		copy_cuda(queue, out, in, n * sizeof *in);
		return GRADCOMP_OK;
	case GRADCOMP_BF16:
		return narrow<bf16>(queue, out, in, n, saturate);
	case GRADCOMP_F16:
		return narrow<f16>(queue, out, in, n, saturate);
	case GRADCOMP_F8E4M3:
		return narrow<f8e4m3>(queue, out, in, n, saturate);
	case GRADCOMP_F8E5M2:
		return narrow<f8e5m2>(queue, out, in, n, saturate);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

extern "C" gradcomp_status cast_to_f32_cuda(void *queue, float *out, const void *in, size_t n, gradcomp_dtype from)
{
	switch (from) {
	case GRADCOMP_F32:
		copy_cuda(queue, out, in, n * sizeof *out);
		return GRADCOMP_OK;
	case GRADCOMP_BF16:
		return widen<bf16>(queue, out, in, n);
	case GRADCOMP_F16:
		return widen<f16>(queue, out, in, n);
	case GRADCOMP_F8E4M3:
		return widen<f8e4m3>(queue, out, in, n);
	case GRADCOMP_F8E5M2:
		return widen<f8e5m2>(queue, out, in, n);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

extern "C" gradcomp_status cast_scaled_cuda(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to,
                                            float a, float limit)
{
	switch (to) {
	case GRADCOMP_F32:
		return scale_narrow<f32>(queue, out, in, n, a, limit);
	case GRADCOMP_BF16:
		return scale_narrow<bf16>(queue, out, in, n, a, limit);
	case GRADCOMP_F16:
		return scale_narrow<f16>(queue, out, in, n, a, limit);
	case GRADCOMP_F8E4M3:
		return scale_narrow<f8e4m3>(queue, out, in, n, a, limit);
	case GRADCOMP_F8E5M2:
		return scale_narrow<f8e5m2>(queue, out, in, n, a, limit);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}
