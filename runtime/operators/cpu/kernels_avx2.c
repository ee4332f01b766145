/* The same kernels for processors with AVX2, FMA and F16C; part of the build when
 * the compiler can (HAVE_AVX2_OBJECTS). */
#define KERNEL(name) name##_avx2

#include "operators/cpu/variant.h"

const gradcomp_operators kernels_avx2 =
#include "operators/cpu/kernel_table.h"
