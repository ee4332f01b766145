/* Between float and the shorter types. */
#include "operators/cuda/each.h"

struct to_f16 : element_wise {
	int saturate;
	explicit to_f16(int s) : saturate(s) {}
	__device__ uint16_t operator()(nothing, size_t, int, float x, absent) const
	{
		return float_f16(x, saturate);
	}
};
struct to_bf16 : element_wise {
	int saturate;
	explicit to_bf16(int s) : saturate(s) {}
	__device__ uint16_t operator()(nothing, size_t, int, float x, absent) const
	{
		return float_bf16(x, saturate);
	}
};
struct from_f16 : element_wise {
	__device__ float operator()(nothing, size_t, int, uint16_t x, absent) const { return f16_float(x); }
};
struct from_bf16 : element_wise {
	__device__ float operator()(nothing, size_t, int, uint16_t x, absent) const { return bf16_float(x); }
};

/* The OCP's 8-bit floats, E4M3 (no Inf, one NaN of each sign) and E5M2. Denormals are
 * rounded by adding a number whose last bit is their unit. */
template <bool E4M3> struct fp8 : element_wise {
	static constexpr int shift = E4M3 ? 20 : 21, most = E4M3 ? 0x7e : 0x7b;
	static constexpr uint32_t base = uint32_t(E4M3 ? 120 : 112) << 23;
	static __device__ float unit() { return E4M3 ? 0x1p-9f : 0x1p-16f; }
};
template <bool E4M3> struct to_fp8 : fp8<E4M3> {
	typedef fp8<E4M3> my;
	int saturate;
	explicit to_fp8(int s) : saturate(s) {}
	__device__ uint8_t operator()(typename my::nothing, size_t, int, float x, absent) const
	{
		const float rounder = my::unit() * 0x1p23f;
		uint32_t mag = key_of(x), r;
		if (mag < my::base + (1u << 23))
			r = float_bits(bits_float(mag) + rounder) - float_bits(rounder);
		else
			r = (mag - my::base + (1u << (my::shift - 1)) - 1 + (mag >> my::shift & 1)) >> my::shift;
		if (r > my::most)
			r = saturate ? my::most : E4M3 ? 0x7f : 0x7c;
		if (E4M3 && mag > KEY_INF)
			r = 0x7f;
		if (!E4M3 && mag >= KEY_INF)
			r = (mag >> my::shift & 3) | 0x7c | (mag > KEY_INF ? 2 : 0);
		return uint8_t(r | (float_bits(x) >> 24 & 0x80));
	}
};
template <bool E4M3> struct from_fp8 : fp8<E4M3> {
	typedef fp8<E4M3> my;
	__device__ float operator()(typename my::nothing, size_t, int, uint8_t x, absent) const
	{
		uint32_t m = x & 0x7f, sign = uint32_t(x & 0x80) << 24;
		if (m > my::most)
			return bits_float(sign | (E4M3 || m > 0x7c ? 0x7fc00000 : 0x7f800000) |
			                  (E4M3 ? 0 : m << my::shift & 0x7fffff));
		if (m < 1u << (23 - my::shift))
			return bits_float(sign | float_bits(float(m) * my::unit()));
		return bits_float(sign | ((m << my::shift) + my::base));
	}
};

template <class O, class F> static gradcomp_status narrow(void *queue, F f, void *out, const float *in, size_t n)
{
	each(queue, f, static_cast<O *>(out), in, no_operand, n);
	return GRADCOMP_OK;
}

template <class A, class F> static gradcomp_status widen(void *queue, F f, float *out, const void *in, size_t n)
{
	each(queue, f, out, static_cast<const A *>(in), no_operand, n);
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
		return narrow<uint16_t>(queue, to_bf16(saturate), out, in, n);
	case GRADCOMP_F16:
		return narrow<uint16_t>(queue, to_f16(saturate), out, in, n);
	case GRADCOMP_F8E4M3:
		return narrow<uint8_t>(queue, to_fp8<true>(saturate), out, in, n);
	case GRADCOMP_F8E5M2:
		return narrow<uint8_t>(queue, to_fp8<false>(saturate), out, in, n);
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
		return widen<uint16_t>(queue, from_bf16(), out, in, n);
	case GRADCOMP_F16:
		return widen<uint16_t>(queue, from_f16(), out, in, n);
	case GRADCOMP_F8E4M3:
		return widen<uint8_t>(queue, from_fp8<true>(), out, in, n);
	case GRADCOMP_F8E5M2:
		return widen<uint8_t>(queue, from_fp8<false>(), out, in, n);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}

struct to_f32 : element_wise {
	__device__ float operator()(nothing, size_t, int, float x, absent) const { return x; }
};
/* A cast of what has been scaled, and held within a limit unless it is 0. */
template <class F> struct scaled : F {
	float a, limit;
	scaled(const F &f, float factor, float most) : F(f), a(factor), limit(most) {}
	__device__ auto operator()(typename F::nothing none, size_t i, int w, float x, absent b) const
	{
		float v = x * a;
		if (limit > 0 && key_of(v) < KEY_INF)
			v = v > limit ? limit : v < -limit ? -limit : v;
		return F::operator()(none, i, w, v, b);
	}
};

extern "C" gradcomp_status cast_scaled_cuda(void *queue, void *out, const float *in, size_t n, gradcomp_dtype to,
                                            float a, float limit)
{
	const int saturate = limit > 0;
	switch (to) {
	case GRADCOMP_F32:
		return narrow<float>(queue, scaled<to_f32>({}, a, limit), out, in, n);
	case GRADCOMP_BF16:
		return narrow<uint16_t>(queue, scaled<to_bf16>(to_bf16(saturate), a, limit), out, in, n);
	case GRADCOMP_F16:
		return narrow<uint16_t>(queue, scaled<to_f16>(to_f16(saturate), a, limit), out, in, n);
	case GRADCOMP_F8E4M3:
		return narrow<uint8_t>(queue, scaled<to_fp8<true>>(to_fp8<true>(saturate), a, limit), out, in, n);
	case GRADCOMP_F8E5M2:
		return narrow<uint8_t>(queue, scaled<to_fp8<false>>(to_fp8<false>(saturate), a, limit), out, in, n);
	default:
		return GRADCOMP_ERR_UNSUPPORTED;
	}
}
