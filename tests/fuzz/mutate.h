/* Payloads damaged at random, the same way for a seed. */
#ifndef TESTS_FUZZ_MUTATE_H
#define TESTS_FUZZ_MUTATE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static uint64_t mutate_state;

/* GRADCOMP_FUZZ_SEED and GRADCOMP_FUZZ_ROUNDS; returns the rounds. */
__attribute__((unused)) static long mutate_begin(long rounds)
{
	const char *seed = getenv("GRADCOMP_FUZZ_SEED"), *times = getenv("GRADCOMP_FUZZ_ROUNDS");
	mutate_state = (seed ? strtoull(seed, NULL, 10) : 1) * 0x9e3779b97f4a7c15u + 1;
	return times ? strtol(times, NULL, 10) : rounds;
}

__attribute__((unused)) static uint32_t draw(uint32_t below)
{
	mutate_state ^= mutate_state << 13;
	mutate_state ^= mutate_state >> 7;
	mutate_state ^= mutate_state << 17;
	return (uint32_t)((mutate_state >> 33) % below);
}

/* One to four edits of bytes, bits and words; data is aligned to 4. */
__attribute__((unused)) static void mutate(uint8_t *data, size_t bytes)
{
	static const uint32_t words[] = {0x7f800000, 0xffffffff, 0x7fc00000, 0};
	for (uint32_t edits = 1 + draw(4); edits && bytes; edits--) {
		size_t at = draw((uint32_t)bytes);
		switch (draw(4)) {
		case 0:
			data[at] ^= (uint8_t)(1u << draw(8));
			break;
		case 1:
			data[at] = (uint8_t)(draw(2) ? 0xff : 0);
			break;
		case 2: /* a word that means something */
			if (at - at % 4 + 4 <= bytes)
				memcpy(data + at - at % 4, &words[draw(4)], sizeof words[0]);
			break;
		default:
			data[at] = (uint8_t)draw(256);
		}
	}
}

#endif
