/* Calls of coders on ranks that are threads: numbers that every rank can tell of every other, and
 * the blocks they come in. */
#ifndef TESTS_SUPPORT_CODER_FIXTURE_H
#define TESTS_SUPPORT_CODER_FIXTURE_H

#include <math.h>

#include "coder/coder_internal.h"
#include "operators/operator_tables.h"
#include "tests/support/thread_ranks.h"

/* Number i of rank w in call k: about as large as a normal one, the same wherever it is asked for. */
__attribute__((unused)) static float coder_number(int w, uint64_t i, int k)
{
	uint64_t z = id_mix(id_mix((uint64_t)w + 1, i), (uint64_t)k);
	double a = (double)(z >> 40) / 16777216.0, b = (double)(z & 0xffffff) / 16777216.0;
	return (float)((a + b - 1) * 2);
}

/* How blocks are cut. */
enum { CUT_EQUAL, CUT_ODD, CUT_GAPS, CUT_ONE, CUT_NONE, CUTS };

__attribute__((unused)) static uint64_t coder_counts(int cut, int P, uint64_t n, uint64_t *counts)
{
	uint64_t total = 0;
	for (int r = 0; r < P; r++) {
		counts[r] = cut == CUT_EQUAL  ? n
		            : cut == CUT_ODD  ? n / 2 + (uint64_t)(r * 37) % (n + 1)
		            : cut == CUT_GAPS ? (r % 2 ? 0 : n + (uint64_t)r)
		            : cut == CUT_ONE  ? (r == P - 1 ? n : 0)
		                              : 0;
		total += counts[r];
	}
	return total;
}

#define CODER_POISON 0xa5

/* n numbers of a type with a wall of poison behind them. */
__attribute__((unused)) static void *coder_buffer(uint64_t n, gradcomp_dtype dtype)
{
	size_t bytes = n * gradcomp_dtype_bytes(dtype) + 64;
	void *p = malloc(bytes);
	if (!p)
		exit(1);
	return memset(p, CODER_POISON, bytes);
}

__attribute__((unused)) static bool coder_wall(const void *buf, uint64_t n, gradcomp_dtype dtype)
{
	const unsigned char *wall = (const unsigned char *)buf + n * gradcomp_dtype_bytes(dtype);
	for (int i = 0; i < 64; i++)
		if (wall[i] != CODER_POISON)
			return false;
	return true;
}

/* Fills a buffer with what rank w gives: numbers begin..begin+n-1. */
__attribute__((unused)) static void coder_fill(void *buf, int w, uint64_t begin, uint64_t n, gradcomp_dtype dtype,
                                               int k)
{
	for (uint64_t i = 0; i < n; i++) {
		float v = coder_number(w, begin + i, k);
		operators_cpu()->cast_from_f32(NULL, (char *)buf + i * gradcomp_dtype_bytes(dtype), &v, 1, dtype, 0);
	}
}

__attribute__((unused)) static double coder_at(const void *buf, uint64_t i, gradcomp_dtype dtype)
{
	float v;
	operators_cpu()->cast_to_f32(NULL, &v, (const char *)buf + i * gradcomp_dtype_bytes(dtype), 1, dtype);
	return v;
}

/* Returns the number as it was given, in the type. */
__attribute__((unused)) static double coder_given(int w, uint64_t i, gradcomp_dtype dtype, int k)
{
	float v = coder_number(w, i, k);
	uint32_t room;
	operators_cpu()->cast_from_f32(NULL, &room, &v, 1, dtype, 0);
	return coder_at(&room, 0, dtype);
}

/* Half a unit in the last place of a number of a type, relative. */
__attribute__((unused)) static double coder_half_ulp(gradcomp_dtype dtype)
{
	return dtype == GRADCOMP_BF16 ? 0x1p-8 : dtype == GRADCOMP_F16 ? 0x1p-11 : 0x1p-24;
}

#endif
