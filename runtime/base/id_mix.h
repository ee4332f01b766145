/* Mixing of words into a hash. */
#ifndef BASE_ID_MIX_H
#define BASE_ID_MIX_H

#include <stdint.h>

/* Equal on all machines: ranks compare what they make of it. The finisher is splitmix64's. */
static inline uint64_t id_mix(uint64_t a, uint64_t b)
{
	uint64_t z = a * 0x9e3779b97f4a7c15u + b + 0x632be59bd9b4e019u;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

#endif
