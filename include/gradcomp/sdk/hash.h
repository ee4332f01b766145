/* Numbers that look random and follow from a key: the same on all ranks and machines. For
 * draws use the operators that draw, which work on devices. No secret can be made of
 * these. */
#ifndef GRADCOMP_SDK_HASH_H
#define GRADCOMP_SDK_HASH_H

#include "gradcomp/abi.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Returns what splitmix64 gives for state `key` in the stream of `seed` (Steele, Lea, Flood: Fast splittable
 * pseudorandom number generators, OOPSLA 2014): one to one for a given seed. */
static inline uint64_t sdk_hash(uint64_t key, uint64_t seed)
{
	uint64_t x = (key + 1) * 0x9e3779b97f4a7c15u ^ seed;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* Turns a hash into a number below n, 1 <= n < 2^32, from its upper half: each as likely as any other to n / 2^32
 * (Lemire: Fast random integer generation in an interval, TOMACS 2019). */
static inline uint32_t sdk_hash_below(uint64_t hash, uint32_t n)
{
	return (uint32_t)((hash >> 32) * n >> 32);
}

#ifdef __cplusplus
}
#endif
#endif
