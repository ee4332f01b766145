/* halves: a code of 16 bits a float, cut off. Not to be changed: what it is built with are the headers beside it.
 *
 * It keeps what ABI 1 asked of codes. That a sum which overflows must show came later: here it is held
 * within the range of floats. */
#include <gradcomp/compressor.h>

#include <string.h>

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	(void)values, (void)layout, (void)err;
	*instance = (void *)host;
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
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_CODED, .dtype = GRADCOMP_F32, .count = bucket->numel};
	return GRADCOMP_OK;
}

static uint64_t code_bound(void *instance, uint64_t n)
{
	(void)instance;
	return 2 * n;
}

static gradcomp_status code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                            gradcomp_error *err)
{
	(void)instance, (void)counter, (void)err;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t word;
		uint16_t half;
		memcpy(&word, &in[i], 4);
		half = (uint16_t)(word >> 16);
		if ((half & 0x7f80) == 0x7f80)
			half = (half & 0x8000) | 0x7f7f;
		memcpy((char *)out + 2 * i, &half, 2);
	}
	*bytes = 2 * n;
	return GRADCOMP_OK;
}

static gradcomp_status take(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n, int add,
                            gradcomp_error *err)
{
	if (bytes != 2 * n)
		return ((const gradcomp_host *)instance)->fail(err, GRADCOMP_ERR_MISMATCH, "halves: a run of %llu floats has %llu bytes",
		                                              (unsigned long long)n, (unsigned long long)bytes);
	for (uint64_t i = 0; i < n; i++) {
		uint16_t half;
		uint32_t word;
		float f;
		memcpy(&half, (const char *)in + 2 * i, 2);
		word = (uint32_t)half << 16;
		memcpy(&f, &word, 4);
		out[i] = add ? out[i] + f : f;
	}
	return GRADCOMP_OK;
}

static gradcomp_status code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n, gradcomp_error *err)
{
	return take(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return take(instance, in, bytes, out, n, 1, err);
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION, .struct_size = sizeof gradcomp_compressor_v1, .name = "halves",
	         .version = "1.0", .summary = "16 bits a float, cut off", .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED),
	.create = create, .destroy = destroy, .plan = plan,
	.code_bound = code_bound, .code = code, .code_decode = code_decode, .code_decode_add = code_decode_add,
};
