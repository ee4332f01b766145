/* A pseudorandom permutation of 0..d-1: a Feistel network over pairs of residues. */
#ifndef OPERATORS_CPU_FEISTEL_H
#define OPERATORS_CPU_FEISTEL_H

#include "operators/cpu/kernels.h"

enum { PERMUTATION_ROUNDS = 8 };

typedef struct permutation {
	uint64_t key[PERMUTATION_ROUNDS];
	uint64_t d;
	uint32_t a, b; /* d <= a b < d + a */
} permutation;

/* Two rounds' keys from a block of the generator: the upper 24 bits of its words. */
INLINE void permutation_key(permutation *p, int round, const uint32_t w[4])
{
	p->key[round] = (uint64_t)(w[0] >> 8) << 24 | w[1] >> 8;
	p->key[round + 1] = (uint64_t)(w[2] >> 8) << 24 | w[3] >> 8;
}

/* A number below `below` out of v: murmur3's mixer, upper bits. */
INLINE uint32_t permutation_mix(uint64_t key, uint32_t v, uint32_t below)
{
	uint64_t z = (key + v) * 0x9e3779b97f4a7c15u;
	z = (z ^ z >> 33) * 0xff51afd7ed558ccdu;
	z = (z ^ z >> 33) * 0xc4ceb9fe1a85ec53u;
	return (uint32_t)((z >> 32) * below >> 32);
}

INLINE uint32_t permutation_sum(uint32_t x, uint32_t y, uint32_t below)
{
	uint32_t z = x + y;
	return z >= below ? z - below : z;
}

/* Draws again where an image falls outside of d. */
INLINE uint32_t permutation_image(const permutation *p, uint64_t at)
{
	do {
		uint32_t l = (uint32_t)(at / p->b), r = (uint32_t)(at % p->b);
		for (int i = 0; i < PERMUTATION_ROUNDS; i += 2) {
			l = permutation_sum(l, permutation_mix(p->key[i], r, p->a), p->a);
			r = permutation_sum(r, permutation_mix(p->key[i + 1], l, p->b), p->b);
		}
		at = (uint64_t)l * p->b + r;
	} while (at >= p->d);
	return (uint32_t)at;
}

static inline permutation permutation_of(uint64_t d)
{
	permutation p = {{0}, d, 1, 1};
	while ((uint64_t)p.a * p.a < d)
		p.a++;
	p.b = (uint32_t)((d + p.a - 1) / p.a);
	return p;
}

#endif
