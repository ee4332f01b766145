/* The floating types by name: what they are in memory, to float and back. */
#ifndef OPERATORS_CUDA_CUDA_KINDS_H
#define OPERATORS_CUDA_CUDA_KINDS_H

#include "operators/cuda/cuda_device.h"

struct f32 {
	typedef float type;
	static __device__ float wide(float f) { return f; }
	static __device__ float narrow(float f, int) { return f; }
};
struct f16 {
	typedef uint16_t type;
	static __device__ float wide(uint16_t h) { return f16_float(h); }
	static __device__ uint16_t narrow(float f, int saturate) { return float_f16(f, saturate); }
};
struct bf16 {
	typedef uint16_t type;
	static __device__ float wide(uint16_t h) { return bf16_float(h); }
	static __device__ uint16_t narrow(float f, int saturate) { return float_bf16(f, saturate); }
};

/* The OCP's 8-bit floats, E4M3 (no Inf, one NaN of each sign) and E5M2. Denormals are
 * rounded by adding a number whose last bit is their unit. */
template <bool E4M3> struct fp8 {
	typedef uint8_t type;
	static constexpr int shift = E4M3 ? 20 : 21, most = E4M3 ? 0x7e : 0x7b;
	static constexpr uint32_t base = uint32_t(E4M3 ? 120 : 112) << 23;
	static __device__ float unit() { return E4M3 ? 0x1p-9f : 0x1p-16f; }

	static __device__ uint8_t narrow(float x, int saturate)
	{
		const float rounder = unit() * 0x1p23f;
		uint32_t mag = key_of(x), r;
		if (mag < base + (1u << 23))
			r = float_bits(bits_float(mag) + rounder) - float_bits(rounder);
		else
			r = (mag - base + (1u << (shift - 1)) - 1 + (mag >> shift & 1)) >> shift;
		if (r > most)
			r = saturate ? most : E4M3 ? 0x7f : 0x7c;
		if (E4M3 && mag > KEY_INF)
			r = 0x7f;
		if (!E4M3 && mag >= KEY_INF)
			r = (mag >> shift & 3) | 0x7c | (mag > KEY_INF ? 2 : 0);
		return uint8_t(r | (float_bits(x) >> 24 & 0x80));
	}
	static __device__ float wide(uint8_t x)
	{
		uint32_t m = x & 0x7f, sign = uint32_t(x & 0x80) << 24;
		if (m > most)
			return bits_float(sign | (E4M3 || m > 0x7c ? 0x7fc00000 : 0x7f800000) |
			                  (E4M3 ? 0 : m << shift & 0x7fffff));
		if (m < 1u << (23 - shift))
			return bits_float(sign | float_bits(float(m) * unit()));
		return bits_float(sign | ((m << shift) + base));
	}
};
typedef fp8<true> f8e4m3;
typedef fp8<false> f8e5m2;

#endif
