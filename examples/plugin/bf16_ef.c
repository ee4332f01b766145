/* bf16_ef: gradients are sent and added in 16 bits, and what that rounds away stays in the
 * error memory. Written in operators alone, so it runs wherever there is a table of them. */
#include <gradcomp/compressor.h>

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	(void)values, (void)layout, (void)err;
	*instance = (void *)host; /* nothing to remember between steps */
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	(void)instance;
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_SUMMED,
	                                   .dtype = GRADCOMP_BF16,
	                                   .flags = GRADCOMP_ROUND_MEAN,
	                                   .count = bucket->numel};
	plan->scratch_bytes = bucket->numel * sizeof(float); /* the numbers that were sent, as floats */
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	uint64_t n = work->bucket->numel;
	(void)instance, (void)round, (void)err;
	op->cast_from_f32(work->queue, out->data, work->flat, n, GRADCOMP_BF16, 1);
	out->bytes = 2 * n;
	return op->cast_to_f32(work->queue, work->scratch, out->data, n, GRADCOMP_BF16);
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t payloads, gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	uint64_t n = work->bucket->numel;
	(void)instance, (void)round, (void)payloads, (void)err;
	op->copy(work->queue, work->error_flat, work->flat, n * sizeof(float));
	op->axpy(work->queue, work->error_flat, -1, work->scratch, n);
	return op->cast_to_f32(work->queue, work->flat, in->data, n, GRADCOMP_BF16);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "bf16_ef",
                 .version = "1.0",
                 .summary = "16 bits, with error memory",
                 .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
};
