#include "base/sha256_block.h"

#include <stdatomic.h>
#include <string.h>

#define BLOCK 64

/* The first 32 bits of the fractional parts of the cube roots of the first 64
 * primes (FIPS 180-4, 4.2.2). */
static const uint32_t sha256_k[64] = {
	0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
	0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
	0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
	0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
	0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
	0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
	0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
	0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2,
};

static uint32_t rotr(uint32_t x, int n)
{
	return x >> n | x << (32 - n);
}

static uint32_t load_be32(const unsigned char *p)
{
	return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

/* One round; the caller gives the eight variables in turn, so none is moved. */
static void round_of(uint32_t v[8], int i, uint32_t kw)
{
	uint32_t *a = &v[-i & 7], *b = &v[(1 - i) & 7], *c = &v[(2 - i) & 7], *d = &v[(3 - i) & 7];
	uint32_t *e = &v[(4 - i) & 7], *f = &v[(5 - i) & 7], *g = &v[(6 - i) & 7], *h = &v[(7 - i) & 7];
	uint32_t s1 = rotr(*e, 6) ^ rotr(*e, 11) ^ rotr(*e, 25), ch = (*e & *f) ^ (~*e & *g);
	uint32_t s0 = rotr(*a, 2) ^ rotr(*a, 13) ^ rotr(*a, 22), maj = (*a & *b) ^ (*a & *c) ^ (*b & *c);
	uint32_t t1 = *h + s1 + ch + kw;
	*d += t1;
	*h = t1 + s0 + maj;
}

void sha256_blocks_portable(uint32_t state[8], const unsigned char *data, size_t blocks)
{
	for (; blocks; blocks--, data += BLOCK) {
		uint32_t w[64], v[8];

		for (int i = 0; i < 16; i++)
			w[i] = load_be32(data + 4 * i);
		for (int i = 16; i < 64; i++) {
			uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
			uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
			w[i] = w[i - 16] + s0 + w[i - 7] + s1;
		}
		memcpy(v, state, sizeof v);
		for (int i = 0; i < 64; i += 8) {
			round_of(v, 0, sha256_k[i] + w[i]);
			round_of(v, 1, sha256_k[i + 1] + w[i + 1]);
			round_of(v, 2, sha256_k[i + 2] + w[i + 2]);
			round_of(v, 3, sha256_k[i + 3] + w[i + 3]);
			round_of(v, 4, sha256_k[i + 4] + w[i + 4]);
			round_of(v, 5, sha256_k[i + 5] + w[i + 5]);
			round_of(v, 6, sha256_k[i + 6] + w[i + 6]);
			round_of(v, 7, sha256_k[i + 7] + w[i + 7]);
		}
		for (int i = 0; i < 8; i++)
			state[i] += v[i];
	}
}

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#include <stdbool.h>

static bool has_native(void)
{
	static atomic_int known; /* 0: not checked yet, 1: no, 2: yes; CPUID is slow in a virtual machine */
	int have = atomic_load_explicit(&known, memory_order_relaxed);
	unsigned a, b, c, d;
	if (!have) {
		have = __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3") &&
		                       __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b & bit_SHA)
		               ? 2
		               : 1;
		atomic_store_explicit(&known, have, memory_order_relaxed);
	}
	return have == 2;
}

/* The instructions hold the state as ABEF and CDGH, the message schedule four
 * words at a time (Intel 64 and IA-32 manual, volume 2, SHA256RNDS2). */
__attribute__((target("sha,sse4.1,ssse3"))) static void native(uint32_t state[8], const unsigned char *data,
                                                               size_t blocks)
{
	const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
	__m128i dcba = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)state), 0xb1);
	__m128i hgfe = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i *)(state + 4)), 0x1b);
	__m128i abef = _mm_alignr_epi8(dcba, hgfe, 8), cdgh = _mm_blend_epi16(hgfe, dcba, 0xf0);
	for (; blocks; blocks--, data += BLOCK) {
		__m128i w[4], abef_was = abef, cdgh_was = cdgh;
		for (int i = 0; i < 4; i++)
			w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(data + 16 * i)), swap);
		for (int i = 0; i < 16; i++) {
			__m128i *now = &w[i & 3], before = w[(i + 3) & 3];
			if (i >= 4)
				*now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(*now, w[(i + 1) & 3]),
				                                          _mm_alignr_epi8(before, w[(i + 2) & 3], 4)),
				                            before);
			__m128i kw = _mm_add_epi32(*now, _mm_loadu_si128((const __m128i *)(sha256_k + 4 * i)));
			cdgh = _mm_sha256rnds2_epu32(cdgh, abef, kw);
			abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(kw, 0x0e));
		}
		abef = _mm_add_epi32(abef, abef_was);
		cdgh = _mm_add_epi32(cdgh, cdgh_was);
	}
	__m128i feba = _mm_shuffle_epi32(abef, 0x1b), dchg = _mm_shuffle_epi32(cdgh, 0xb1);
	_mm_storeu_si128((__m128i *)state, _mm_blend_epi16(feba, dchg, 0xf0));
	_mm_storeu_si128((__m128i *)(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

bool sha256_blocks_native(uint32_t state[8], const unsigned char *data, size_t blocks)
{
	if (!has_native())
		return false;
	native(state, data, blocks);
	return true;
}
#else
bool sha256_blocks_native(uint32_t state[8], const unsigned char *data, size_t blocks)
{
	(void)state, (void)data, (void)blocks;
	return false;
}
#endif

void sha256_blocks(uint32_t state[8], const unsigned char *data, size_t blocks)
{
	if (!sha256_blocks_native(state, data, blocks))
		sha256_blocks_portable(state, data, blocks);
}
