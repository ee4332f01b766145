/* delta: what a gradient has changed by since the last average, in 16 bits. The last average
 * is state: an array that the host keeps for the plugin, saves and loads with the job's
 * checkpoints, and hands over bucket by bucket. It is the same on all ranks, so
 *
 *     average = last + mean of 16-bit (u - last)        error = what the 16 bits did not hold
 */
#include <gradcomp/compressor.h>

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	(void)values, (void)layout, (void)err;
	*instance = (void *)host; /* all there is to remember is in the state array */
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
	plan->scratch_bytes = 2 * bucket->numel * sizeof(float); /* the difference, and what was sent of it */
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	uint64_t n = work->bucket->numel;
	float *difference = work->scratch, *sent = difference + n;
	(void)instance, (void)round, (void)err;
	op->copy(work->queue, difference, work->flat, n * sizeof(float));
	op->axpy(work->queue, difference, -1, work->state[0], n);
	op->cast_from_f32(work->queue, out->data, difference, n, GRADCOMP_BF16, 1);
	out->bytes = 2 * n;
	return op->cast_to_f32(work->queue, sent, out->data, n, GRADCOMP_BF16);
}

/* State changes here only: encode() may have been in vain. */
static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t payloads, gradcomp_error *err)
{
	const gradcomp_operators *op = work->operators;
	uint64_t n = work->bucket->numel;
	float *difference = work->scratch, *sent = difference + n;
	(void)instance, (void)round, (void)payloads, (void)err;
	op->copy(work->queue, work->error_flat, difference, n * sizeof(float));
	op->axpy(work->queue, work->error_flat, -1, sent, n);
	op->cast_to_f32(work->queue, work->flat, in->data, n, GRADCOMP_BF16);
	op->add(work->queue, work->flat, work->state[0], n);
	op->copy(work->queue, work->state[0], work->flat, n * sizeof(float));
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "delta",
                 .version = "1.0",
                 .summary = "differences from the last average, in 16 bits",
                 .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.state_arrays = 1,
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
};
