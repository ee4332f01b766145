/* The bytes of sparse payloads, by the formulas of gradcomp/sdk/sparse.h. */
#ifndef TESTS_SUPPORT_SPARSE_BYTES_H
#define TESTS_SUPPORT_SPARSE_BYTES_H

#include <math.h>

#include "gradcomp/sdk/sparse.h"

static uint64_t whole_words(uint64_t bits)
{
	return (bits + 31) / 32 * 4;
}

/* Returns the bits of each of Elias-Fano's lower halves. */
static uint64_t lower_bits(uint64_t d, uint64_t k)
{
	return k ? (uint64_t)floor(log2((double)(d / k))) : 0;
}

__attribute__((unused)) static uint64_t index_formula(uint32_t coding, uint64_t d, uint64_t k)
{
	uint64_t l = lower_bits(d, k), bitmap = whole_words(d), best = 4 * k;
	uint64_t delta = k ? whole_words(k * l) + whole_words(k + ((d - 1) >> l)) : 0;
	if (coding == SDK_SPARSE_DELTA || coding == SDK_SPARSE_AUTO)
		best = delta < best ? delta : best;
	if (coding == SDK_SPARSE_BITMAP || coding == SDK_SPARSE_AUTO)
		best = bitmap < best ? bitmap : best;
	return coding == SDK_SPARSE_AUTO && k == d ? 0 : best;
}

__attribute__((unused)) static uint64_t value_formula(uint32_t values, uint64_t k)
{
	static const uint64_t bits[] = {32, 16, 16, 8, 4};
	return whole_words(bits[values] * k) + (values >= SDK_SPARSE_BLOCK8 ? 4 * ((k + 255) / 256) : 0);
}

__attribute__((unused)) static uint64_t share_formula(double density, uint64_t d)
{
	return d ? (uint64_t)fmax(1, round(density * (double)d)) : 0;
}

#endif
