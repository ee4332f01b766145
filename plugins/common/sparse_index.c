/* Index codings of sparse payloads. Elias-Fano: Elias, Efficient storage and
 * retrieval by content and address of static files, J. ACM 21 (1974). */
#include "plugins/common/sparse.h"

#include <string.h>

const char *const sparse_index_codings[] = {"raw", "delta", "bitmap", "auto", NULL};

enum { NONE = SPARSE_AUTO + 1 }; /* all d are sent */

static uint64_t words(uint64_t bits)
{
	return (bits + 31) / 32;
}

/* floor(log2(d / k)) */
static uint32_t low_bits(uint64_t d, uint64_t k)
{
	return 63 - (uint32_t)__builtin_clzll(d / k);
}

static uint64_t high_bits(uint64_t d, uint64_t k)
{
	return k + ((d - 1) >> low_bits(d, k));
}

static uint64_t delta_words(uint64_t d, uint64_t k)
{
	return words(k * low_bits(d, k)) + words(high_bits(d, k));
}

/* What `coding` comes to for k of d: never longer than raw. */
static uint32_t settle(uint32_t coding, uint64_t d, uint64_t k, uint64_t *bytes)
{
	uint32_t best = SPARSE_RAW;
	uint64_t least = k;
	if (k && (coding == SPARSE_DELTA || coding == SPARSE_AUTO) && delta_words(d, k) < least) {
		best = SPARSE_DELTA;
		least = delta_words(d, k);
	}
	if ((coding == SPARSE_BITMAP || coding == SPARSE_AUTO) && words(d) < least) {
		best = SPARSE_BITMAP;
		least = words(d);
	}
	if (coding == SPARSE_AUTO && k == d) {
		best = NONE;
		least = 0;
	}
	*bytes = 4 * least;
	return best;
}

uint64_t sparse_index_bytes(uint32_t coding, uint64_t d, uint64_t k)
{
	uint64_t bytes;
	settle(coding, d, k, &bytes);
	return bytes;
}

static void pack_delta(uint32_t *out, const uint32_t *idx, uint64_t d, uint64_t k)
{
	const uint32_t l = low_bits(d, k), mask = (uint32_t)(((uint64_t)1 << l) - 1);
	uint32_t *high = out + words(k * l), used = 0;
	uint64_t bits = 0;
	memset(high, 0, words(high_bits(d, k)) * sizeof *high);
	for (uint64_t j = 0; j < k; j++) {
		uint64_t at = ((uint64_t)idx[j] >> l) + j;
		high[at / 32] |= (uint32_t)1 << at % 32;
		bits |= (uint64_t)(idx[j] & mask) << used;
		used += l;
		if (used >= 32) {
			*out++ = (uint32_t)bits;
			bits >>= 32;
			used -= 32;
		}
	}
	if (used)
		*out = (uint32_t)bits;
}

/* The j-th bit that is set, at `at`, stands for at - j. */
static int unpack_delta(uint32_t *idx, const uint32_t *in, uint64_t d, uint64_t k)
{
	const uint32_t l = low_bits(d, k), mask = (uint32_t)(((uint64_t)1 << l) - 1);
	const uint32_t *high = in + words(k * l);
	uint64_t bits = 0, j = 0, end = high_bits(d, k);
	uint32_t have = 0;
	for (uint64_t w = 0; w < words(end); w++)
		for (uint32_t set = high[w]; set; set &= set - 1) {
			uint64_t at = w * 32 + (uint32_t)__builtin_ctz(set);
			if (j == k || at >= end)
				return 0;
			if (have < l) {
				bits |= (uint64_t)*in++ << have;
				have += 32;
			}
			uint64_t value = (at - j) << l | (bits & mask);
			bits >>= l;
			have -= l;
			idx[j++] = value < d ? (uint32_t)value : GRADCOMP_NO_INDEX;
		}
	return j == k;
}

static int unpack_bitmap(uint32_t *idx, const uint32_t *in, uint64_t d, uint64_t k)
{
	uint64_t j = 0;
	for (uint64_t w = 0; w < words(d); w++)
		for (uint32_t set = in[w]; set; set &= set - 1) {
			if (j == k)
				return 0;
			idx[j++] = (uint32_t)(w * 32) + (uint32_t)__builtin_ctz(set);
		}
	return j == k;
}

void sparse_index_pack(uint32_t coding, void *out, const uint32_t *idx, uint64_t d, uint64_t k)
{
	uint32_t *to = out;
	uint64_t bytes;
	switch (settle(coding, d, k, &bytes)) {
	case SPARSE_RAW:
		memcpy(to, idx, bytes);
		break;
	case SPARSE_DELTA:
		pack_delta(to, idx, d, k);
		break;
	case SPARSE_BITMAP:
		memset(to, 0, bytes);
		for (uint64_t j = 0; j < k; j++)
			to[idx[j] / 32] |= (uint32_t)1 << idx[j] % 32;
		break;
	}
}

const char *sparse_index_unpack(uint32_t coding, const void *in, uint32_t *idx, uint64_t d, uint64_t k)
{
	uint64_t bytes;
	int counted = 1;
	switch (settle(coding, d, k, &bytes)) {
	case SPARSE_RAW:
		memcpy(idx, in, bytes);
		break;
	case SPARSE_DELTA:
		counted = unpack_delta(idx, in, d, k);
		break;
	case SPARSE_BITMAP:
		counted = unpack_bitmap(idx, in, d, k);
		break;
	default:
		for (uint64_t j = 0; j < k; j++)
			idx[j] = (uint32_t)j;
	}
	return counted ? sparse_index_check(idx, d, k) : "has more or fewer indices than its length says";
}

const char *sparse_index_check(const uint32_t *idx, uint64_t d, uint64_t k)
{
	int bad = 0;
	for (uint64_t j = 1; j < k; j++)
		bad |= idx[j] <= idx[j - 1];
	if (bad)
		return "has indices that do not ascend";
	return k && idx[k - 1] >= d ? "has an index past the end" : NULL;
}
