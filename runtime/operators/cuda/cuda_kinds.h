/* The floating types by name: what they are in memory, to float and back. */
#ifndef OPERATORS_CUDA_CUDA_KINDS_H
#define OPERATORS_CUDA_CUDA_KINDS_H

#include "operators/cuda/cuda_device.h"

#include "operators/cpu/small_float.h"

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

/* The OCP's 8-bit floats, E4M3 (no Inf, one NaN of each sign) and E5M2, and its 4-bit ones, E2M1 (neither Inf nor NaN),
 * whose sign stands in a byte's highest bit here as well. Denormals are rounded by adding a number whose last bit is
 * their unit. */
template <int KIND> struct fp8 {
	typedef uint8_t type;
	static constexpr bool E4M3 = KIND == FLOAT8_E4M3, E2M1 = KIND == FLOAT8_E2M1;
	static constexpr int kind = KIND, shift = E4M3 ? 20 : E2M1 ? 22 : 21, most = E4M3 ? 0x7e : E2M1 ? 7 : 0x7b;
	static constexpr unsigned bits = E2M1 ? 4 : 8;
	static constexpr uint32_t base = uint32_t(E4M3 ? 120 : E2M1 ? 126 : 112) << 23;
	static __device__ float unit() { return E4M3 ? 0x1p-9f : E2M1 ? 0x1p-1f : 0x1p-16f; }
	/* A code as it stands in memory, and back. */
	static __device__ uint32_t packed(uint8_t x) { return E2M1 ? (x & 7) | (x >> 4 & 8) : x; }
	static __device__ uint8_t unpacked(uint32_t c) { return uint8_t(E2M1 ? (c & 7) | (c & 8) << 4 : c); }

	static __device__ uint8_t narrow(float x, int saturate)
	{
		const float rounder = unit() * 0x1p23f;
		uint32_t mag = key_of(x), r;
		if (mag < base + (1u << 23))
			r = float_bits(bits_float(mag) + rounder) - float_bits(rounder);
		else
			r = (mag - base + (1u << (shift - 1)) - 1 + (mag >> shift & 1)) >> shift;
		if (r > most)
			r = saturate || E2M1 ? most : E4M3 ? 0x7f : 0x7c;
		if (E4M3 && mag > KEY_INF)
			r = 0x7f;
		if (!E4M3 && !E2M1 && mag >= KEY_INF)
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
typedef fp8<FLOAT8_E4M3> f8e4m3;
typedef fp8<FLOAT8_E5M2> f8e5m2;
typedef fp8<FLOAT8_E2M1> f4e2m1;

#endif
