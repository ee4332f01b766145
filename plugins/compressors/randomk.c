/* randomk: the same k = max(1, round(density * d)) random indices on all ranks, from
 * the seed they share, so that values add up and no index is sent (Stich,
 * Cordonnier, Jaggi: Sparsified SGD with memory, NeurIPS 2018).
 *
 *     average = mean over ranks of u, 0 elsewhere             error = u, 0 where sent
 *
 * The indices are the first k of a pseudorandom permutation of the d (random_indices()),
 * keyed with the step and the bucket. They are distinct, and every index is as likely as
 * any other.
 *
 * Payload: k values (F32), 4k bytes. */
#include "gradcomp/sdk/residual.h"
#include "gradcomp/sdk/sparse.h"

static const gradcomp_param params[] = {SDK_SPARSE_SCHEDULE_ROWS};

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	sdk_sparse_schedule s;
	return sdk_sparse_schedule_read(&s, host, values, "randomk", err);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	return sdk_sparse_new(sizeof(sdk_sparse), host, values, layout, "randomk", SDK_SPARSE_INDICES, instance, err);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	uint64_t k = sdk_sparse_part_at(s, bucket, step, 0).k;
	(void)err;
	if (sdk_sparse_is_passthrough(s, step)) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){
		.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_F32, .flags = GRADCOMP_ROUND_MEAN, .count = k};
	plan->scratch_bytes = k * sizeof(uint32_t);
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	uint64_t k = sdk_sparse_part_at(s, work->bucket, work->step, 0).k;
	uint32_t *idx = work->scratch;
	(void)round, (void)err;
	work->operators->random_indices(work->queue, idx, k, work->bucket->numel, s->layout->seed, work->step,
	                                work->bucket->offset);
	work->operators->gather(work->queue, out->data, work->flat, idx, k);
	out->bytes = k * sizeof(float);
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	const gradcomp_operators *op = work->operators;
	uint64_t d = work->bucket->numel, k = sdk_sparse_part_at(s, work->bucket, work->step, 0).k;
	(void)round;
	if (sdk_sparse_is_passthrough(s, work->step)) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	if (n != 1 || in->bytes != k * sizeof(float))
		return s->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "randomk: a sum of %llu bytes for bucket %u, %llu are right",
		                     (unsigned long long)in->bytes, work->bucket->index,
		                     (unsigned long long)(k * sizeof(float)));
	sdk_residual_all(work);
	sdk_residual_sent(work, work->scratch, k);
	op->fill(work->queue, work->flat, 0, d);
	op->scatter(work->queue, work->flat, work->scratch, in->data, k);
	return GRADCOMP_OK;
}

static gradcomp_status cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                            gradcomp_error *err)
{
	const sdk_sparse *s = instance;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes =
		4.0 *
		(double)(sdk_sparse_is_passthrough(s, step) ? bucket->numel : sdk_sparse_part_at(s, bucket, step, 0).k);
	cost->passes = sdk_sparse_is_passthrough(s, step) ? 1 : 3;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "randomk",
			.version = "1.0",
			.summary = "the same random numbers of each bucket on all ranks, summed",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK | GRADCOMP_TRAIT_STOCHASTIC | GRADCOMP_TRAIT_CUDA,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.max_bucket = UINT32_MAX,
	.check = check,
	.create = create,
	.destroy = sdk_sparse_destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
	.cost = cost,
};
