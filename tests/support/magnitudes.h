/* Kinds of numbers that selection by magnitude meets, sound and nasty. */
#ifndef TESTS_SUPPORT_MAGNITUDES_H
#define TESTS_SUPPORT_MAGNITUDES_H

#include "tests/support/operator_input.h"

enum { NORMAL, UNIFORM, CONSTANT, ZERO, TIES, SIGNED_ZERO, DENORMAL, ASCENDING, PERIODIC, SPREAD, HEAVY, KINDS };
static const char *const kinds[] = {
	"normal",   "uniform",   "constant", "all zero",      "many ties",   "zeroes of both signs",
	"denormal", "ascending", "periodic", "all exponents", "heavy tails",
};

static float magnitude(int kind, size_t i)
{
	float v;
	switch (kind) {
	case NORMAL:
		return test_normal();
	case UNIFORM:
		return (float)test_uniform() - 0.5f;
	case CONSTANT:
		return i % 2 ? -2.7f : 2.7f;
	case ZERO:
		return 0;
	case TIES:
		return (float)(int)(test_random() % 7) - 3;
	case SIGNED_ZERO:
		return test_random() % 1000 ? (i % 2 ? -0.0f : 0.0f) : 1.0f;
	case DENORMAL:
		return test_bits((uint32_t)test_random() % 5000 | (uint32_t)(i % 2) << 31);
	case ASCENDING:
		return (float)i;
	case PERIODIC:
		return i % 64 ? 0.001f * test_normal() : test_normal();
	case SPREAD:
		return test_bits((uint32_t)(test_random() % 0x7f800000u) | (uint32_t)(i % 2) << 31);
	default:
		v = test_normal();
		return v * v * v;
	}
}

/* n numbers of a kind, `odd` floats after a boundary. */
__attribute__((unused)) static float *magnitudes(int kind, size_t n, size_t odd)
{
	float *x = test_alloc(n, odd);
	for (size_t i = 0; i < n; i++)
		x[i] = magnitude(kind, i);
	return x;
}

/* Without the sign, as an integer that sorts like it. */
__attribute__((unused)) static uint32_t key_of(float x)
{
	uint32_t b;
	memcpy(&b, &x, sizeof b);
	return b & 0x7fffffff;
}

#endif
