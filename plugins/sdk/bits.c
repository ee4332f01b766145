#include "gradcomp/sdk/bits.h"

static uint32_t mask_of(uint32_t bits)
{
	return (uint32_t)((1ull << bits) - 1);
}

void sdk_bits_pack(void *out, const uint32_t *in, uint64_t n, uint32_t bits)
{
	uint8_t *to = out;
	uint64_t held = 0;
	uint32_t have = 0, mask = mask_of(bits);
	for (uint64_t i = 0; i < n; i++) {
		held |= (uint64_t)(in[i] & mask) << have;
		for (have += bits; have >= 8; have -= 8) {
			*to++ = (uint8_t)held;
			held >>= 8;
		}
	}
	if (have)
		*to = (uint8_t)held;
}

void sdk_bits_unpack(uint32_t *out, const void *in, uint64_t n, uint32_t bits)
{
	const uint8_t *from = in;
	uint64_t held = 0;
	uint32_t have = 0, mask = mask_of(bits);
	for (uint64_t i = 0; i < n; i++) {
		for (; have < bits; have += 8)
			held |= (uint64_t)*from++ << have;
		out[i] = (uint32_t)held & mask;
		held >>= bits;
		have -= bits;
	}
}

uint32_t sdk_bits_at(const void *in, uint64_t i, uint32_t bits)
{
	const uint8_t *from = (const uint8_t *)in + i / 8 * bits + i % 8 * bits / 8;
	uint32_t skip = (uint32_t)(i % 8 * bits % 8);
	uint64_t held = 0;
	for (uint32_t have = 0; have < skip + bits; have += 8)
		held |= (uint64_t)*from++ << have;
	return (uint32_t)(held >> skip) & mask_of(bits);
}
