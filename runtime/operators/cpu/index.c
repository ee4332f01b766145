/* Codings of indices. */
#include <string.h>

#include "operators/cpu/index_strings.h"

size_t KERNEL(index_words)(size_t d, size_t k, uint32_t coding)
{
	if (index_is_string(coding)) {
		const index_string s = index_string_of(d, k, coding);
		return s.lows + s.words;
	}
	return coding == GRADCOMP_INDEX_RAW ? k : 0;
}

/* No room is needed on this device. */
size_t KERNEL(index_scratch)(size_t d, size_t k, uint32_t coding)
{
	(void)d, (void)k, (void)coding;
	return 0;
}

static void pack_string(uint32_t *out, const uint32_t *idx, size_t k, const index_string *s)
{
	const uint32_t mask = (uint32_t)(((uint64_t)1 << s->low) - 1);
	uint32_t *string = out + s->lows, used = 0;
	uint64_t bits = 0;
	memset(string, 0, s->words * sizeof *string);
	for (size_t j = 0; j < k; j++) {
		uint64_t at = ((uint64_t)idx[j] >> s->low) + (s->by_rank ? j : 0);
		string[at / 32] |= (uint32_t)1 << at % 32;
		bits |= (uint64_t)(idx[j] & mask) << used;
		used += s->low;
		if (used >= 32) {
			*out++ = (uint32_t)bits;
			bits >>= 32;
			used -= 32;
		}
	}
	if (used)
		*out = (uint32_t)bits;
}

void KERNEL(index_pack)(void *queue, uint32_t *out, const uint32_t *idx, size_t d, size_t k, uint32_t coding)
{
	(void)queue;
	if (coding == GRADCOMP_INDEX_RAW)
		memcpy(out, idx, k * sizeof *idx);
	if (!index_is_string(coding))
		return;
	const index_string s = index_string_of(d, k, coding);
	pack_string(out, idx, k, &s);
}

/* The j-th bit that is set, at `at`, stands for at, or at - j. Returns how many it has read: it
 * stops at one too many, or out of place. */
static size_t unpack_string(int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k, const index_string *s)
{
	const uint32_t mask = (uint32_t)(((uint64_t)1 << s->low) - 1);
	const uint32_t *string = in + s->lows;
	uint64_t bits = 0;
	uint32_t have = 0;
	size_t j = 0;
	for (uint64_t w = 0; w < s->words; w++)
		for (uint32_t set = string[w]; set; set &= set - 1) {
			uint64_t at = w * 32 + (uint32_t)__builtin_ctz(set);
			if (j == k || at >= s->bits) {
				*fault = 1;
				return j;
			}
			if (have < s->low) {
				bits |= (uint64_t)*in++ << have;
				have += 32;
			}
			uint64_t value = (at - (s->by_rank ? j : 0)) << s->low | (bits & mask);
			bits >>= s->low;
			have -= s->low;
			idx[j++] = value < d ? (uint32_t)value : GRADCOMP_NO_INDEX;
		}
	return j;
}

void KERNEL(index_unpack)(void *queue, int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k,
                          uint32_t coding, void *scratch)
{
	size_t found = k;
	(void)queue, (void)scratch;
	if (coding == GRADCOMP_INDEX_RAW)
		memcpy(idx, in, k * sizeof *idx);
	for (size_t j = 0; coding == GRADCOMP_INDEX_ALL && j < k; j++)
		idx[j] = (uint32_t)j;
	if (index_is_string(coding)) {
		const index_string s = index_string_of(d, k, coding);
		found = unpack_string(fault, idx, in, d, k, &s);
	}
	for (size_t j = found; j < k; j++)
		idx[j] = GRADCOMP_NO_INDEX;
	if (found != k)
		*fault = 1;
}
