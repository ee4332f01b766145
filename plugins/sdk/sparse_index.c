/* Index codings of sparse payloads. */
#include "gradcomp/sdk/sparse.h"

const char *const sdk_sparse_index_codings[] = {"raw", "delta", "bitmap", "auto", NULL};

/* Returns what `coding` comes to for k of d: never longer than raw. */
static uint32_t settle(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k, uint64_t *bytes)
{
	uint32_t best = GRADCOMP_INDEX_RAW;
	uint64_t least = k, delta = k ? op->index_words(d, k, GRADCOMP_INDEX_DELTA) : 0,
		 bitmap = k ? op->index_words(d, k, GRADCOMP_INDEX_BITMAP) : 0;
	if ((coding == SDK_SPARSE_DELTA || coding == SDK_SPARSE_AUTO) && delta < least) {
		best = GRADCOMP_INDEX_DELTA;
		least = delta;
	}
	if ((coding == SDK_SPARSE_BITMAP || coding == SDK_SPARSE_AUTO) && bitmap < least) {
		best = GRADCOMP_INDEX_BITMAP;
		least = bitmap;
	}
	if (coding == SDK_SPARSE_AUTO && k == d) {
		best = GRADCOMP_INDEX_ALL;
		least = 0;
	}
	*bytes = 4 * least;
	return best;
}

uint64_t sdk_sparse_index_bytes(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k)
{
	uint64_t bytes;
	settle(op, coding, d, k, &bytes);
	return bytes;
}

uint64_t sdk_sparse_index_scratch(const gradcomp_operators *op, uint32_t coding, uint64_t d, uint64_t k)
{
	uint64_t bytes;
	return k ? op->index_scratch(d, k, settle(op, coding, d, k, &bytes)) : 0;
}

void sdk_sparse_index_pack(const gradcomp_operators *op, void *queue, uint32_t coding, void *out, const uint32_t *idx,
                           uint64_t d, uint64_t k)
{
	uint64_t bytes;
	if (k)
		op->index_pack(queue, out, idx, d, k, settle(op, coding, d, k, &bytes));
}

void sdk_sparse_index_unpack(const gradcomp_operators *op, void *queue, int *fault, uint32_t coding, const void *in,
                             uint32_t *idx, uint64_t d, uint64_t k, void *scratch)
{
	uint64_t bytes;
	if (k)
		op->index_unpack(queue, fault, idx, in, d, k, settle(op, coding, d, k, &bytes), scratch);
}

const char *sdk_sparse_index_read(const gradcomp_operators *op, uint32_t coding, const void *in, uint32_t *idx,
                                  uint64_t d, uint64_t k)
{
	int bad = 0;
	sdk_sparse_index_unpack(op, NULL, &bad, coding, in, idx, d, k, NULL);
	return bad ? "has more or fewer indices than its length says" : sdk_sparse_index_check(idx, d, k);
}

const char *sdk_sparse_index_check(const uint32_t *idx, uint64_t d, uint64_t k)
{
	int bad = 0;
	for (uint64_t j = 1; j < k; j++)
		bad |= idx[j] <= idx[j - 1];
	if (bad)
		return "has indices that do not ascend";
	return k && idx[k - 1] >= d ? "has an index past the end" : NULL;
}
