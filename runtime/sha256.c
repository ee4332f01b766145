#include "sha256.h"

#include <string.h>

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

static void sha256_block(uint32_t state[8], const unsigned char *p)
{
	uint32_t w[64], v[8];

	for (int i = 0; i < 16; i++)
		w[i] = load_be32(p + 4 * i);
	for (int i = 16; i < 64; i++) {
		uint32_t s0 = rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3;
		uint32_t s1 = rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10;
		w[i] = w[i - 16] + s0 + w[i - 7] + s1;
	}
	memcpy(v, state, sizeof v);
	for (int i = 0; i < 64; i++) {
		uint32_t s1 = rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25);
		uint32_t ch = (v[4] & v[5]) ^ (~v[4] & v[6]);
		uint32_t t1 = v[7] + s1 + ch + sha256_k[i] + w[i];
		uint32_t s0 = rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22);
		uint32_t maj = (v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]);
		memmove(v + 1, v, 7 * sizeof v[0]);
		v[4] += t1;
		v[0] = t1 + s0 + maj;
	}
	for (int i = 0; i < 8; i++)
		state[i] += v[i];
}

void sha256_init(sha256 *s)
{
	static const uint32_t first[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
	                                  0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

	memcpy(s->state, first, sizeof first);
	s->bytes = 0;
}

void sha256_update(sha256 *s, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	size_t have = s->bytes % SHA256_BLOCK;

	if (!bytes)
		return;
	s->bytes += bytes;
	if (have) {
		size_t take = SHA256_BLOCK - have < bytes ? SHA256_BLOCK - have : bytes;
		memcpy(s->block + have, p, take);
		p += take;
		bytes -= take;
		if (have + take < SHA256_BLOCK)
			return;
		sha256_block(s->state, s->block);
	}
	for (; bytes >= SHA256_BLOCK; p += SHA256_BLOCK, bytes -= SHA256_BLOCK)
		sha256_block(s->state, p);
	memcpy(s->block, p, bytes);
}

void sha256_final(sha256 *s, unsigned char digest[SHA256_BYTES])
{
	static const unsigned char padding[SHA256_BLOCK] = {0x80};
	unsigned char length[8];
	size_t have = s->bytes % SHA256_BLOCK;

	for (int i = 0; i < 8; i++)
		length[i] = (unsigned char)(s->bytes * 8 >> (56 - 8 * i));
	sha256_update(s, padding, (have < 56 ? 56 : 120) - have);
	sha256_update(s, length, sizeof length);
	for (int i = 0; i < SHA256_BYTES; i++)
		digest[i] = (unsigned char)(s->state[i / 4] >> (24 - 8 * (i % 4)));
	explicit_bzero(s, sizeof *s);
}

void sha256_digest(const void *data, size_t bytes, unsigned char digest[SHA256_BYTES])
{
	sha256 s;

	sha256_init(&s);
	sha256_update(&s, data, bytes);
	sha256_final(&s, digest);
}

void hmac_sha256_init(hmac_sha256_ctx *h, const void *key, size_t key_bytes)
{
	unsigned char pad[SHA256_BLOCK] = {0};

	if (key_bytes > sizeof pad)
		sha256_digest(key, key_bytes, pad);
	else if (key_bytes)
		memcpy(pad, key, key_bytes);

	for (size_t i = 0; i < sizeof pad; i++)
		pad[i] ^= 0x36;
	sha256_init(&h->inner);
	sha256_update(&h->inner, pad, sizeof pad);

	for (size_t i = 0; i < sizeof pad; i++)
		pad[i] ^= 0x36 ^ 0x5c;
	sha256_init(&h->outer);
	sha256_update(&h->outer, pad, sizeof pad);
	explicit_bzero(pad, sizeof pad);
}

void hmac_sha256_update(hmac_sha256_ctx *h, const void *data, size_t bytes)
{
	sha256_update(&h->inner, data, bytes);
}

void hmac_sha256_final(hmac_sha256_ctx *h, unsigned char mac[SHA256_BYTES])
{
	unsigned char digest[SHA256_BYTES];

	sha256_final(&h->inner, digest);
	sha256_update(&h->outer, digest, sizeof digest);
	sha256_final(&h->outer, mac);
	explicit_bzero(digest, sizeof digest);
}

void hmac_sha256(const void *key, size_t key_bytes, const void *data, size_t bytes,
                 unsigned char mac[SHA256_BYTES])
{
	hmac_sha256_ctx h;

	hmac_sha256_init(&h, key, key_bytes);
	hmac_sha256_update(&h, data, bytes);
	hmac_sha256_final(&h, mac);
}

int sha256_equal(const void *a, const void *b, size_t bytes)
{
	const volatile unsigned char *x = a, *y = b;
	unsigned char differ = 0;

	for (size_t i = 0; i < bytes; i++)
		differ |= (unsigned char)(x[i] ^ y[i]);
	return differ == 0;
}

void sha256_hex(const unsigned char digest[SHA256_BYTES], char hex[2 * SHA256_BYTES + 1])
{
	static const char digits[] = "0123456789abcdef";

	for (int i = 0; i < SHA256_BYTES; i++) {
		hex[2 * i] = digits[digest[i] >> 4];
		hex[2 * i + 1] = digits[digest[i] & 15];
	}
	hex[2 * SHA256_BYTES] = '\0';
}
