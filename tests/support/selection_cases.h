/* A selection is made of these: kinds of numbers, how many there are, and how many are taken. */
#ifndef TESTS_SUPPORT_SELECTION_CASES_H
#define TESTS_SUPPORT_SELECTION_CASES_H

#include "tests/support/magnitudes.h"

/* Kinds that are of a whole array, behind those of single numbers. */
enum { LAYERS = KINDS, ONE_LAYER, HALF_ZERO, TWO_VALUES, DESCENDING, SELECTION_KINDS };

__attribute__((unused)) static const char *selection_kind(int kind)
{
	static const char *const more[] = {"layers of other scales", "one layer 1,000 times another", "half of it zero",
	                                   "two values", "descending"};
	return kind < KINDS ? kinds[kind] : more[kind - KINDS];
}

/* n numbers of a kind, `odd` floats after a boundary. Where there are layers they are five. */
__attribute__((unused)) static float *selection_numbers(int kind, size_t n, size_t odd)
{
	float *x = magnitudes(kind < KINDS ? kind : NORMAL, n, odd);
	for (size_t i = 0; i < n && kind >= KINDS; i++) {
		const size_t layer = i * 5 / n;
		if (kind == LAYERS)
			x[i] = ldexpf(x[i], -(int)((layer + n) * 3 % 5));
		else if (kind == ONE_LAYER)
			x[i] *= layer == n % 5 ? 1000 : 1;
		else if (kind == HALF_ZERO)
			x[i] = test_random() % 2 ? x[i] : 0;
		else if (kind == TWO_VALUES)
			x[i] = test_random() % 40 ? 1e-3f : -2;
		else
			x[i] = (float)(n - i);
	}
	return x;
}

/* Where vectors of 8, 16 and 32 numbers end; where sampling begins; and 16,384 parts of a sample that are a
 * whole number long, or nearly are. */
static const size_t selection_edges[] = {1, 8, 31, 33, 1000, 65535, 65536, 65537, 81919, 81920, 98303, 114700};
enum {
	SELECTION_MOST = 300000,
	SELECTION_EDGES = sizeof selection_edges / sizeof selection_edges[0],
	SELECTION_TAKEN = 10
};

/* Size number i: first the edges. Most others are large enough for a sample. */
__attribute__((unused)) static size_t selection_size(size_t i)
{
	const size_t drawn = 1 + test_random() % SELECTION_MOST;
	return i < SELECTION_EDGES ? selection_edges[i] : i % 3 && drawn < 65536 ? 65536 + drawn : drawn;
}

/* Fills in SELECTION_TAKEN numbers from 1 to n. Up to n / 32 are picked at once. */
__attribute__((unused)) static void selection_taken(size_t *k, size_t n)
{
	const double density[] = {0, 1.0 / 32, 0.03, 0.01, 0.1, 0.5, 1};
	for (size_t i = 0; i < SELECTION_TAKEN; i++) {
		if (i < sizeof density / sizeof density[0])
			k[i] = (size_t)(density[i] * (double)n);
		else
			k[i] = i == 7 ? n / 32 + 1 : (size_t)((double)n * 1e-4 * exp(test_uniform() * log(0.5 / 1e-4)));
		k[i] = k[i] < 1 ? 1 : k[i] > n ? n : k[i];
	}
}

#endif
