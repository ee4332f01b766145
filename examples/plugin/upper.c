/* upper: a code. Collectives sum runs of floats, and what goes from rank to rank is the upper half of
 * each float, as bfloat16 cut off instead of rounded. There is no encode() and no decode(): the host puts
 * what a rank's code has lost into that rank's error memory.
 *
 *     average = sum of codes / P        error = what this rank's codes have lost
 */
#include <gradcomp/sdk/coded.h>

#include <string.h>

/* The SDK's functions for a compressor that is a code and nothing else work on instances that begin with an sdk_coded.
 * It has no parameters, and codes from step 0 on. */

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_layout *layout,
                              void **instance, gradcomp_error *err)
{
	sdk_coded *c = host->alloc(sizeof *c);
	(void)values, (void)layout;
	if (!c)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "upper: no memory");
	*c = (sdk_coded){.host = host, .name = "upper"};
	*instance = c;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	sdk_coded *c = instance;
	if (c)
		c->host->release(c);
}

static uint64_t code_bound(void *instance, uint64_t n)
{
	(void)instance;
	return 2 * n;
}

static gradcomp_status code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                            gradcomp_error *err)
{
	uint16_t *to = out;
	(void)instance, (void)counter, (void)err;
	for (uint64_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, &in[i], sizeof bits);
		to[i] = (uint16_t)(bits >> 16);
	}
	*bytes = 2 * n;
	return GRADCOMP_OK;
}

static float value_of(uint16_t code)
{
	uint32_t bits = (uint32_t)code << 16;
	float value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

/* `in` comes from another rank. Any 16 bits are a float; what can be wrong is how many there are, and that they are no
 * number: a sum of finite numbers may be infinite, but never NaN. */
static gradcomp_status check(const sdk_coded *c, const uint16_t *in, uint64_t bytes, uint64_t n, gradcomp_error *err)
{
	gradcomp_status st = sdk_coded_length(c, bytes, 2 * n, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		if ((in[i] & 0x7fff) > 0x7f80)
			st = c->host->fail(err, GRADCOMP_ERR_MISMATCH, "upper: number %llu of a run that came is NaN",
			                   (unsigned long long)i);
	return st;
}

static gradcomp_status code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                   gradcomp_error *err)
{
	gradcomp_status st = check(instance, in, bytes, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		out[i] = value_of(((const uint16_t *)in)[i]);
	return st;
}

static gradcomp_status code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	gradcomp_status st = check(instance, in, bytes, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		out[i] += value_of(((const uint16_t *)in)[i]);
	return st;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof gradcomp_compressor_v1,
                 .name = "upper",
                 .version = "1.0",
                 .summary = "the upper half of every float, while they are summed",
                 .licence = "MIT"},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED),
	.create = create,
	.destroy = destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = code_bound,
	.code = code,
	.code_decode = code_decode,
	.code_decode_add = code_decode_add,
};
