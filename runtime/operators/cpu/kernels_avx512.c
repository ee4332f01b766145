/* The same kernels for processors with AVX-512 (F, BW, DQ and VL) as well; part of
 * the build when the compiler can (HAVE_AVX512_OBJECTS). Vectors stay 32 bytes
 * wide but where kernels say otherwise, so that sums have the same order. */
#define KERNEL(name) name##_avx512

#include "operators/cpu/variant.h"

const gradcomp_operators kernels_avx512 =
#include "operators/cpu/kernel_table.h"
