/* Which table runs on this processor. */
#include <string.h>

#include "../operators.h"
#include "kernels.h"

static const gradcomp_operators portable = KERNEL_TABLE;

#ifdef HAVE_AVX2_OBJECTS
#include <cpuid.h>

static int can_avx2(void)
{
	unsigned a, b, c = 0, d;
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
	       (c & bit_F16C);
}
#endif

const gradcomp_operators *operators_cpu_variant(const char *name)
{
	if (!strcmp(name, "portable"))
		return &portable;
#ifdef HAVE_AVX2_OBJECTS
	if (!strcmp(name, "avx2") && can_avx2())
		return &kernels_avx2;
#endif
	return NULL;
}

const gradcomp_operators *operators_cpu(void)
{
	const gradcomp_operators *best = operators_cpu_variant("avx2");
	return best ? best : &portable;
}
