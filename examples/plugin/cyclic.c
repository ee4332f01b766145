/* cyclic: of every `every` numbers one is sent, another one each step; the rest
 * waits in the error memory. All ranks send the same ones, so payloads add up. */
#include <gradcomp/compressor.h>

typedef struct cyclic {
	const gradcomp_host *host;
	uint64_t every;
} cyclic;

static const gradcomp_param params[] = {
	{.name = "every",
         .type = GRADCOMP_PARAM_INT,
         .def = "8",
         .min = 1,
         .max = 1e6,
         .help = "send one number in this many"},
};

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	cyclic *c = host->alloc(sizeof *c);
	(void)layout;
	if (!c)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "cyclic: no memory");
	*c = (cyclic){host, (uint64_t)values[0].i};
	*instance = c;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	if (instance)
		((cyclic *)instance)->host->release(instance);
}

static gradcomp_status plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                            gradcomp_error *err)
{
	uint64_t every = ((cyclic *)instance)->every, first = step % every;
	(void)err;
	plan->nrounds = 1;
	plan->rounds[0] =
		(gradcomp_round){.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_F32, .flags = GRADCOMP_ROUND_MEAN};
	plan->rounds[0].count = bucket->numel > first ? (bucket->numel - first + every - 1) / every : 0;
	return GRADCOMP_OK;
}

static gradcomp_status encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                              gradcomp_error *err)
{
	uint64_t every = ((cyclic *)instance)->every, k = 0;
	(void)round, (void)err;
	for (uint64_t i = work->step % every; i < work->bucket->numel; i += every)
		((float *)out->data)[k++] = work->flat[i];
	out->bytes = k * sizeof(float);
	return GRADCOMP_OK;
}

static gradcomp_status decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                              uint32_t n, gradcomp_error *err)
{
	uint64_t every = ((cyclic *)instance)->every, first = work->step % every, k = 0;
	(void)round, (void)n, (void)err;
	for (uint64_t i = 0; i < work->bucket->numel; i++) {
		int sent = i % every == first;
		work->error_flat[i] = sent ? 0 : work->flat[i];
		work->flat[i] = sent ? ((const float *)in->data)[k++] : 0;
	}
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "cyclic",
                 .version = "1.0",
                 .summary = "one number in so many, in turn",
                 .licence = "MIT",
                 .params = params,
                 .nparams = 1},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = create,
	.destroy = destroy,
	.plan = plan,
	.encode = encode,
	.decode = decode,
};
