/* For the operator tests: random input that is new in every run, and the tables
 * this machine can run. */
#ifndef TESTS_SUPPORT_OPERATOR_INPUT_H
#define TESTS_SUPPORT_OPERATOR_INPUT_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "operators/operator_tables.h"
#include "tests/support/tap.h"

static uint64_t test_state;

/* Starts the generator; TEST_SEED=N repeats a run. */
__attribute__((unused)) static void test_seed(void)
{
	const char *given = getenv("TEST_SEED");
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	test_state = given ? strtoull(given, NULL, 0) : (uint64_t)t.tv_sec * 1000000007u + (uint64_t)t.tv_nsec;
	printf("# TEST_SEED=%llu\n", (unsigned long long)test_state);
}

/* splitmix64 */
__attribute__((unused)) static uint64_t test_random(void)
{
	uint64_t z = test_state += 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
	z = (z ^ z >> 27) * 0x94d049bb133111ebu;
	return z ^ z >> 31;
}

__attribute__((unused)) static double test_uniform(void)
{
	return (double)(test_random() >> 11) * 0x1p-53;
}

/* Roughly normal. */
__attribute__((unused)) static float test_normal(void)
{
	double s = -6;
	for (int i = 0; i < 12; i++)
		s += test_uniform();
	return (float)s;
}

/* How far the mean of n draws may be from what it is to be: once in 10^12 it is farther off by
 * chance (Bernstein's inequality, which also holds for what is hardly ever drawn). Of one draw:
 * its variance, and the most that it is off by itself. */
__attribute__((unused)) static double test_mean_off(double variance, double most, double n)
{
	double chance = log(2e12) / n, linear = most * chance / 3;
	return linear + sqrt(linear * linear + 2 * variance * chance);
}

__attribute__((unused)) static float test_bits(uint32_t b)
{
	float f;
	memcpy(&f, &b, sizeof f);
	return f;
}

/* n floats that begin `odd` floats after a 64-byte boundary, with a canary behind
 * them; test_free() says whether it was touched. */
__attribute__((unused)) static float *test_alloc(size_t n, size_t odd)
{
	float *p = aligned_alloc(64, (odd + n + 16 + 15) / 16 * 64);
	if (!p)
		exit(1);
	for (size_t i = 0; i < odd + n + 16; i++)
		p[i] = -123.5f;
	return p + odd;
}

__attribute__((unused)) static int test_free(float *p, size_t n, size_t odd)
{
	int whole = 1;
	for (size_t i = n; i < n + 16; i++)
		whole &= p[i] == -123.5f;
	for (size_t i = 1; i <= odd; i++)
		whole &= p[-(ptrdiff_t)i] == -123.5f;
	free(p - odd);
	return whole;
}

/* Every table of this machine in turn; says which are left out. */
__attribute__((unused)) static void test_variants(void (*each)(const char *name, const gradcomp_operators *op))
{
	static const char *const names[] = {"portable", "avx2", "avx512"};
	for (int i = 0; i < 3; i++) {
		const gradcomp_operators *op = operators_cpu_variant(names[i]);
		if (op)
			each(names[i], op);
		else
			skip("not built, or not run by this processor", "%s operators", names[i]);
	}
}

#endif
