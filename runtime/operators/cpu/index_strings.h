/* Bit strings that stand for k ascending indices below d: their sizes. Elias-Fano: Elias,
 * Efficient storage and retrieval by content and address of static files, J. ACM 21 (1974). */
#ifndef OPERATORS_CPU_INDEX_STRINGS_H
#define OPERATORS_CPU_INDEX_STRINGS_H

#include "operators/cpu/kernels.h"

typedef struct index_string {
	uint32_t low;     /* bits of an index that are packed before the string */
	uint32_t by_rank; /* index j is j bits further on */
	uint64_t lows;    /* words of them */
	uint64_t bits;    /* bits of the string that an index can have */
	uint64_t words;   /* words of the string */
} index_string;

/* DELTA or BITMAP. */
static inline index_string index_string_of(uint64_t d, uint64_t k, uint32_t coding)
{
	index_string s = {0, 0, 0, (d + 31) / 32 * 32, (d + 31) / 32};
	if (coding == GRADCOMP_INDEX_DELTA) {
		s.low = 63 - (uint32_t)__builtin_clzll(d / k);
		s.by_rank = 1;
		s.lows = (k * s.low + 31) / 32;
		s.bits = k + ((d - 1) >> s.low);
		s.words = (s.bits + 31) / 32;
	}
	return s;
}

static inline int index_is_string(uint32_t coding)
{
	return coding == GRADCOMP_INDEX_DELTA || coding == GRADCOMP_INDEX_BITMAP;
}

#endif
