/* Lists of indices and values, packed. */
#include "gradcomp/sdk/sparse.h"

const char *const sdk_sparse_value_codings[] = {"f32", "bf16", "fp16", "block8", "block4", NULL};

/* How blocks are quantised: the largest value of each is exact. */
static gradcomp_quantiser blocks(uint32_t values)
{
	uint32_t bits = values == SDK_SPARSE_BLOCK8 ? 8 : 4;
	return (gradcomp_quantiser){.struct_size = sizeof(gradcomp_quantiser),
	                            .bits = bits,
	                            .levels = (1u << (bits - 1)) - 1,
	                            .block = 256,
	                            .norm = GRADCOMP_NORM_ABSMAX_OR_NAN,
	                            .rounding = GRADCOMP_TO_NEAREST};
}

static uint64_t value_bytes(const gradcomp_operators *op, uint32_t values, uint64_t k)
{
	gradcomp_quantiser q = blocks(values);
	switch (values) {
	case SDK_SPARSE_F32:
		return 4 * k;
	case SDK_SPARSE_BF16:
	case SDK_SPARSE_FP16:
		return (2 * k + 3) / 4 * 4;
	default:
		return (op->quantised_bytes(&q, k) + 3) / 4 * 4;
	}
}

uint64_t sdk_sparse_bytes(const gradcomp_operators *op, sdk_sparse_coding c, uint64_t d, uint64_t k)
{
	return value_bytes(op, c.values, k) + sdk_sparse_index_bytes(op, c.indices, d, k);
}

/* Values out of the range of FP16 are held at its ends: what is cut off stays in
 * the error memory. */
static void pack_values(const gradcomp_operators *op, void *queue, uint32_t values, void *out, const float *val,
                        uint64_t k)
{
	gradcomp_quantiser q = blocks(values);
	switch (values) {
	case SDK_SPARSE_F32:
		op->copy(queue, out, val, k * sizeof *val);
		break;
	case SDK_SPARSE_BF16:
	case SDK_SPARSE_FP16:
		op->cast_from_f32(queue, out, val, k, values == SDK_SPARSE_BF16 ? GRADCOMP_BF16 : GRADCOMP_F16, 1);
		break;
	default:
		op->quantise(queue, out, val, k, &q);
	}
}

void sdk_sparse_pack(const gradcomp_operators *op, void *queue, sdk_sparse_coding c, void *out, sdk_sparse_pairs p,
                     uint64_t d, uint64_t k)
{
	uint32_t *indices = (uint32_t *)out + value_bytes(op, c.values, k) / 4;
	if (!k)
		return;
	/* Values that do not fill their last word leave the rest of it zero. */
	op->fill(queue, (float *)(void *)(indices - 1), 0, 1);
	pack_values(op, queue, c.values, out, p.val, k);
	sdk_sparse_index_pack(op, queue, c.indices, indices, p.idx, d, k);
}

static void unpack_values(const gradcomp_operators *op, void *queue, int *fault, uint32_t values, const void *in,
                          float *val, uint64_t k)
{
	gradcomp_quantiser q = blocks(values);
	switch (values) {
	case SDK_SPARSE_F32:
		op->copy(queue, val, in, k * sizeof *val);
		break;
	case SDK_SPARSE_BF16:
	case SDK_SPARSE_FP16:
		op->cast_to_f32(queue, val, in, k, values == SDK_SPARSE_BF16 ? GRADCOMP_BF16 : GRADCOMP_F16);
		break;
	default:
		op->quantised_check(queue, fault, in, k, &q);
		op->dequantise(queue, val, in, k, &q);
	}
}

const char *sdk_sparse_unpack_sums(const gradcomp_operators *op, sdk_sparse_coding c, const void *in,
                                   sdk_sparse_pairs p, uint64_t d, uint64_t k)
{
	int bad = 0;
	unpack_values(op, NULL, &bad, c.values, in, p.val, k);
	if (bad)
		return "has steps or codes that are none";
	return sdk_sparse_index_read(op, c.indices, (const char *)in + value_bytes(op, c.values, k), p.idx, d, k);
}

const char *sdk_sparse_unpack(const gradcomp_operators *op, sdk_sparse_coding c, const void *in, sdk_sparse_pairs p,
                              uint64_t d, uint64_t k)
{
	const char *wrong = sdk_sparse_unpack_sums(op, c, in, p, d, k);
	return wrong ? wrong : sdk_sparse_value_check(op, p.val, k);
}

void sdk_sparse_unpack_on(const gradcomp_operators *op, void *queue, int *fault, sdk_sparse_coding c, const void *in,
                          sdk_sparse_pairs p, uint64_t d, uint64_t k, void *scratch)
{
	if (!k)
		return;
	unpack_values(op, queue, fault, c.values, in, p.val, k);
	sdk_sparse_index_unpack(op, queue, fault, c.indices, (const char *)in + value_bytes(op, c.values, k), p.idx, d,
	                        k, scratch);
	op->sparse_check(queue, fault, p.idx, p.val, k, d);
}

const char *sdk_sparse_value_check(const gradcomp_operators *op, const float *val, uint64_t k)
{
	int bad = 0;
	op->nonfinite(NULL, val, k, &bad);
	return bad ? "has a value that is not finite" : NULL;
}
