/* Lists of indices and values, packed. */
#include "plugins/common/sparse.h"

const char *const sparse_value_codings[] = {"f32", "bf16", "fp16", "block8", "block4", NULL};

/* How blocks are quantised: the largest value of each is exact. */
static gradcomp_quantiser blocks(uint32_t values)
{
	uint32_t bits = values == SPARSE_BLOCK8 ? 8 : 4;
	return (gradcomp_quantiser){.struct_size = sizeof(gradcomp_quantiser),
	                            .bits = bits,
	                            .levels = (1u << (bits - 1)) - 1,
	                            .block = 256,
	                            .norm = GRADCOMP_NORM_ABSMAX,
	                            .rounding = GRADCOMP_TO_NEAREST};
}

static uint64_t value_bytes(const gradcomp_operators *op, uint32_t values, uint64_t k)
{
	gradcomp_quantiser q = blocks(values);
	switch (values) {
	case SPARSE_F32:
		return 4 * k;
	case SPARSE_BF16:
	case SPARSE_FP16:
		return (2 * k + 3) / 4 * 4;
	default:
		return (op->quantised_bytes(&q, k) + 3) / 4 * 4;
	}
}

uint64_t sparse_bytes(const gradcomp_operators *op, sparse_coding c, uint64_t d, uint64_t k)
{
	return value_bytes(op, c.values, k) + sparse_index_bytes(c.indices, d, k);
}

/* Values out of the range of FP16 are held at its ends: what is cut off stays in
 * the error memory. */
static void pack_values(const gradcomp_operators *op, uint32_t values, void *out, const float *val, uint64_t k)
{
	gradcomp_quantiser q = blocks(values);
	switch (values) {
	case SPARSE_F32:
		op->copy(NULL, out, val, k * sizeof *val);
		break;
	case SPARSE_BF16:
	case SPARSE_FP16:
		op->cast_from_f32(NULL, out, val, k, values == SPARSE_BF16 ? GRADCOMP_BF16 : GRADCOMP_F16, 1);
		break;
	default:
		op->quantise(NULL, out, val, k, &q);
	}
}

void sparse_pack(const gradcomp_operators *op, sparse_coding c, void *out, sparse_pairs p, uint64_t d, uint64_t k)
{
	uint32_t *indices = (uint32_t *)out + value_bytes(op, c.values, k) / 4;
	if (!k)
		return;
	indices[-1] = 0;
	pack_values(op, c.values, out, p.val, k);
	sparse_index_pack(c.indices, indices, p.idx, d, k);
}

const char *sparse_unpack(const gradcomp_operators *op, sparse_coding c, const void *in, sparse_pairs p, uint64_t d,
                          uint64_t k)
{
	gradcomp_quantiser q = blocks(c.values);
	int bad = 0;
	switch (c.values) {
	case SPARSE_F32:
		op->copy(NULL, p.val, in, k * sizeof *p.val);
		break;
	case SPARSE_BF16:
	case SPARSE_FP16:
		op->cast_to_f32(NULL, p.val, in, k, c.values == SPARSE_BF16 ? GRADCOMP_BF16 : GRADCOMP_F16);
		break;
	default:
		op->quantised_check(NULL, &bad, in, k, &q);
		if (bad)
			return "has steps or codes that are none";
		op->dequantise(NULL, p.val, in, k, &q);
	}
	const char *wrong = sparse_value_check(op, p.val, k);
	return wrong ? wrong
	             : sparse_index_unpack(c.indices, (const char *)in + value_bytes(op, c.values, k), p.idx, d, k);
}

const char *sparse_value_check(const gradcomp_operators *op, const float *val, uint64_t k)
{
	int bad = 0;
	op->nonfinite(NULL, val, k, &bad);
	return bad ? "has a value that is not finite" : NULL;
}
