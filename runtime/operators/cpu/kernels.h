/* How the host operators are built. Every kernel file is compiled up to three
 * times: as it stands (NEON on Arm), through kernels_avx2.c with AVX2, FMA and F16C
 * switched on, and through kernels_avx512.c with AVX-512 as well. All see the same
 * vector types (GCC's and clang's vector extension, 32 bytes wide), which the
 * compiler splits where registers are narrower. So the order of additions is the
 * same in all, and as contraction is off, so are the bits.
 * Only kernels marked LOCAL in gradcomp/operators.h say FMA() (a b + c) or FNMA() (c - a b). */
#ifndef OPERATORS_CPU_KERNELS_H
#define OPERATORS_CPU_KERNELS_H

#include "gradcomp/operators.h"

#ifdef __AVX2__
#include <immintrin.h>
#endif

#ifndef KERNEL
#define KERNEL(name) name##_portable
#endif

/* Vectors only travel between inlined functions. */
#pragma GCC diagnostic ignored "-Wpsabi"

/* Before a loop over a constant count that must become straight code. */
#ifdef __clang__
#define UNROLL _Pragma("unroll")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

#define INLINE static inline __attribute__((always_inline))

typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef uint32_t v8u __attribute__((vector_size(32)));
typedef double v4d __attribute__((vector_size(32)));
typedef float v4f __attribute__((vector_size(16)));
typedef int32_t v4i __attribute__((vector_size(16)));
/* The same anywhere in memory. */
typedef float v8f_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef uint32_t v8u_any __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v4f_any __attribute__((vector_size(16), aligned(4), may_alias));

#define LOAD8(p) (*(const v8f_any *)(p))
#define STORE8(p, v) (*(v8f_any *)(p) = (v))
#define SPLAT8(a) ((a) - (v8f){0})

#ifdef __FMA__
#define FMA(a, b, c) ((v8f)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define FNMA(a, b, c) ((v8f)_mm256_fnmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#define FNMA(a, b, c) ((c) - (a) * (b))
#endif

/* Four floats to doubles and back. Exact one way and rounded once the other,
 * however it is done; GCC's own is slow. */
#ifdef __AVX2__
#define WIDEN(v) ((v4d)_mm256_cvtps_pd((__m128)(v)))
#define NARROW(v) ((v4f)_mm256_cvtpd_ps((__m256d)(v)))
#else
#define WIDEN(v) __builtin_convertvector(v, v4d)
#define NARROW(v) __builtin_convertvector(v, v4f)
#endif

/* The operators of this variant. */
#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) result KERNEL(name) parameters;
#define GRADCOMP_SCRATCH(name, parameters, arguments) size_t KERNEL(name) parameters;
#define GRADCOMP_SIZE(name, parameters, arguments) size_t KERNEL(name) parameters;
#include "gradcomp/operators.def"
const char *KERNEL(failed)(void);

/* 1 in a type, little-endian. */
static inline uint64_t flag_bits(gradcomp_dtype dtype)
{
	switch (dtype) {
	case GRADCOMP_F32:
		return 0x3f800000u;
	case GRADCOMP_F64:
		return UINT64_C(0x3ff0000000000000);
	case GRADCOMP_F16:
		return 0x3c00;
	case GRADCOMP_BF16:
		return 0x3f80;
	default:
		return 1;
	}
}

/* The tables of kernels_avx2.c and kernels_avx512.c, when they are part of the build. */
extern const gradcomp_operators kernels_avx2, kernels_avx512;

#endif
