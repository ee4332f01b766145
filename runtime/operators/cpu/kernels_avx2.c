/* The same kernels for processors with AVX2, FMA and F16C; part of the build when
 * the compiler can (HAVE_AVX2_OBJECTS). */
#define KERNEL(name) name##_avx2

#include "arithmetic.c"
#include "cast.c"
#include "dequantise.c"
#include "exact_sum.c"
#include "low_rank.c"
#include "low_rank_batch.c"
#include "mstopk.c"
#include "orthonormalise.c"
#include "quantise.c"
#include "select.c"
#include "sign.c"
#include "sparse.c"
#include "sums.c"
#include "ternary.c"
#include "threshold.c"
#include "topk.c"
#include "uniform.c"
#include "vectors.c"

const gradcomp_operators kernels_avx2 = KERNEL_TABLE;
