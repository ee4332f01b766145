/* A compressor that can be looked at and not run. A fixture defines what is
 * different about it, then includes this. */
#include "gradcomp/compressor.h"

#ifndef FIXTURE_ABI
#define FIXTURE_ABI GRADCOMP_ABI_VERSION
#endif
#ifndef FIXTURE_SIZE
#define FIXTURE_SIZE sizeof(struct gradcomp_compressor_v1)
#endif
#ifndef FIXTURE_PARAMS
#define FIXTURE_PARAMS NULL
#define FIXTURE_NPARAMS 0
#else
#define FIXTURE_NPARAMS (sizeof FIXTURE_PARAMS / sizeof FIXTURE_PARAMS[0])
#endif
#ifndef FIXTURE_TRAITS
#define FIXTURE_TRAITS 0
#endif
#ifndef FIXTURE_PATTERNS
#define FIXTURE_PATTERNS GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED)
#endif
#ifndef FIXTURE_INSTEAD
#define FIXTURE_INSTEAD 0
#endif
#ifndef FIXTURE_CHECK
#define FIXTURE_CHECK NULL
#endif
#ifndef FIXTURE_ENCODE
#define FIXTURE_ENCODE fixture_encode
#endif
#ifndef FIXTURE_SAVE
#define FIXTURE_SAVE NULL
#endif
#ifndef FIXTURE_RESERVED
#define FIXTURE_RESERVED 0
#endif

static gradcomp_status fixture_create(const gradcomp_host *host, const gradcomp_value *values,
                                      const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	(void)values, (void)layout, (void)instance;
	return host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "a fixture does not run");
}

static void fixture_destroy(void *instance)
{
	(void)instance;
}

static gradcomp_status fixture_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                    gradcomp_error *err)
{
	(void)instance, (void)bucket, (void)step, (void)plan, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

__attribute__((unused)) static gradcomp_status fixture_encode(void *instance, const gradcomp_work *work, uint32_t round,
                                                              gradcomp_payload *out, gradcomp_error *err)
{
	(void)instance, (void)work, (void)round, (void)out, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

static gradcomp_status fixture_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                      const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	(void)instance, (void)work, (void)round, (void)in, (void)n, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

#ifdef FIXTURE_CODES
static uint64_t fixture_bound(void *instance, uint64_t n)
{
	(void)instance;
	return 4 * n;
}

static gradcomp_status fixture_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                    uint64_t *bytes, gradcomp_error *err)
{
	(void)instance, (void)in, (void)n, (void)counter, (void)out, (void)bytes, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

static gradcomp_status fixture_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	(void)instance, (void)in, (void)bytes, (void)out, (void)n, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}
#endif

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = FIXTURE_ABI,
			.struct_size = FIXTURE_SIZE,
			.name = FIXTURE_NAME,
			.version = "1.2",
			.summary = "a fixture",
			.licence = "Apache-2.0",
			.params = FIXTURE_PARAMS,
			.nparams = FIXTURE_NPARAMS,
			.reserved = {FIXTURE_RESERVED},
		},
	.traits = FIXTURE_TRAITS,
	.patterns = FIXTURE_PATTERNS,
	.instead = FIXTURE_INSTEAD,
	.check = FIXTURE_CHECK,
	.create = fixture_create,
	.destroy = fixture_destroy,
	.plan = fixture_plan,
	.encode = FIXTURE_ENCODE,
	.decode = fixture_decode,
	.save = FIXTURE_SAVE,
#ifdef FIXTURE_CODES
	.code_bound = fixture_bound,
	.code = fixture_code,
	.code_decode = fixture_code_decode,
	.code_decode_add = fixture_code_decode,
#endif
};
