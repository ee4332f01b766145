#include "base/checksum.h"

#include <string.h>

#define P1 0x9e3779b185ebca87u
#define P2 0xc2b2ae3d27d4eb4fu
#define P3 0x165667b19e3779f9u
#define P4 0x85ebca77c2b2ae63u
#define P5 0x27d4eb2f165667c5u

static inline uint64_t rotate(uint64_t x, int n)
{
	return x << n | x >> (64 - n);
}

static inline uint64_t load64(const unsigned char *p)
{
	uint64_t x;

	memcpy(&x, p, sizeof x);
#if __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
	x = __builtin_bswap64(x);
#endif
	return x;
}

static inline uint64_t load32(const unsigned char *p)
{
	return p[0] | (uint64_t)p[1] << 8 | (uint64_t)p[2] << 16 | (uint64_t)p[3] << 24;
}

static inline uint64_t turn(uint64_t lane, uint64_t input)
{
	return rotate(lane + input * P2, 31) * P1;
}

static const unsigned char *take_blocks(uint64_t lane[4], const unsigned char *p, size_t blocks)
{
	uint64_t a = lane[0], b = lane[1], c = lane[2], d = lane[3];

	for (; blocks; blocks--, p += 32) {
		a = turn(a, load64(p));
		b = turn(b, load64(p + 8));
		c = turn(c, load64(p + 16));
		d = turn(d, load64(p + 24));
	}
	lane[0] = a;
	lane[1] = b;
	lane[2] = c;
	lane[3] = d;
	return p;
}

void checksum_init(checksum *c, uint64_t seed)
{
	*c = (checksum){.lane = {seed + P1 + P2, seed + P2, seed, seed - P1}, .seed = seed};
}

void checksum_update(checksum *c, const void *data, size_t bytes)
{
	const unsigned char *p = data;
	size_t held = c->bytes % 32;

	if (!bytes)
		return;
	c->bytes += bytes;
	if (held) {
		size_t n = 32 - held < bytes ? 32 - held : bytes;

		memcpy(c->block + held, p, n);
		p += n;
		bytes -= n;
		if (held + n < 32)
			return;
		take_blocks(c->lane, c->block, 1);
	}
	p = take_blocks(c->lane, p, bytes / 32);
	memcpy(c->block, p, bytes % 32);
}

uint64_t checksum_final(const checksum *c)
{
	const unsigned char *p = c->block, *end = p + c->bytes % 32;
	uint64_t h = c->seed + P5;

	if (c->bytes >= 32) {
		h = rotate(c->lane[0], 1) + rotate(c->lane[1], 7) + rotate(c->lane[2], 12) + rotate(c->lane[3], 18);
		for (int i = 0; i < 4; i++)
			h = (h ^ turn(0, c->lane[i])) * P1 + P4;
	}
	h += c->bytes;
	for (; end - p >= 8; p += 8)
		h = rotate(h ^ turn(0, load64(p)), 27) * P1 + P4;
	if (end - p >= 4) {
		h = rotate(h ^ load32(p) * P1, 23) * P2 + P3;
		p += 4;
	}
	for (; p < end; p++)
		h = rotate(h ^ *p * P5, 11) * P1;
	h = (h ^ h >> 33) * P2;
	h = (h ^ h >> 29) * P3;
	return h ^ h >> 32;
}

uint64_t checksum_of(const void *data, size_t bytes, uint64_t seed)
{
	checksum c;

	checksum_init(&c, seed);
	checksum_update(&c, data, bytes);
	return checksum_final(&c);
}
