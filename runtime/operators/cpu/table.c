/* Which table runs on this processor. */
#include <stdbool.h>
#include <pthread.h>
#include <string.h>

#include "operators/operator_tables.h"
#include "operators/split.h"
#include "operators/cpu/kernels.h"

static const gradcomp_operators portable =
#include "operators/cpu/kernel_table.h"

#ifdef HAVE_AVX2_OBJECTS
#include <cpuid.h>

	static int can_avx2(void)
{
	unsigned a, b, c = 0, d;
	return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __get_cpuid(1, &a, &b, &c, &d) &&
	       (c & bit_F16C);
}
#endif

#ifdef HAVE_AVX512_OBJECTS
static bool can_avx512(void)
{
	return can_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	       __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
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
#ifdef HAVE_AVX512_OBJECTS
	if (!strcmp(name, "avx512") && can_avx512())
		return &kernels_avx512;
#endif
	return NULL;
}

static gradcomp_operators shared;

static void make_shared(void)
{
	static const char *const best_first[] = {"avx512", "avx2", "portable"};
	const gradcomp_operators *best = NULL;
	for (int i = 0; !best; i++)
		best = operators_cpu_variant(best_first[i]);
	split_plain = best;
	shared = *best;
#define SPLIT_TAKEN(name) shared.name = split_##name;
#define WHOLE_TAKEN(name)
#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) host##_TAKEN(name)
#include "gradcomp/operators.def"
}

const gradcomp_operators *operators_cpu(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, make_shared);
	return &shared;
}
