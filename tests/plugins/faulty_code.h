/* A code that keeps every rule, floats as they are; the faulty ones define what is
 * wrong. */
#include <string.h>

#include "gradcomp/compressor.h"

#ifndef CODE_EXTRA
#define CODE_EXTRA 0
#endif

typedef struct plain {
	const gradcomp_host *host;
	float room[4096];
} plain;

static gradcomp_status plain_create(const gradcomp_host *host, const gradcomp_value *values,
                                    const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	plain *p = host->alloc(sizeof *p);
	(void)values, (void)layout;
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "plain: no memory");
	p->host = host;
	*instance = p;
	return GRADCOMP_OK;
}

static void plain_destroy(void *instance)
{
	plain *p = instance;
	if (p)
		p->host->release(p);
}

static gradcomp_status plain_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                                  gradcomp_error *err)
{
	(void)instance, (void)step, (void)err;
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_CODED, .count = bucket->numel};
	return GRADCOMP_OK;
}

static uint64_t plain_bound(void *instance, uint64_t n)
{
	(void)instance;
	return 4 * n;
}

/* In runs, through the workspace, as a real code would go. */
static void through(plain *p, float *out, const float *in, uint64_t n)
{
#ifdef CODE_SHARED
	for (uint64_t at = 0; at < n; at += 4096) {
		uint64_t run = n - at < 4096 ? n - at : 4096;
		memcpy(p->room, in + at, run * 4);
		for (volatile int i = 0; i < 20000; i++)
			;
		memcpy(out + at, p->room, run * 4);
	}
#else
	(void)p;
	memcpy(out, in, n * 4);
#endif
}

static gradcomp_status plain_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                  uint64_t *bytes, gradcomp_error *err)
{
	(void)counter, (void)err;
	through(instance, out, in, n);
#ifdef CODE_CAPS
	for (uint64_t i = 0; i < n; i++) {
		const float most = 0x1.fffffep127f, v = in[i] < -most ? -most : in[i] > most ? most : in[i];
		memcpy((char *)out + 4 * i, &v, sizeof v);
	}
#endif
	*bytes = 4 * n + CODE_EXTRA;
	return GRADCOMP_OK;
}

static gradcomp_status plain_check(plain *p, uint64_t bytes, uint64_t n, gradcomp_error *err)
{
#ifndef CODE_TRUSTING
	if (bytes != 4 * n)
		return p->host->fail(err, GRADCOMP_ERR_MISMATCH, "plain: %llu bytes for %llu floats",
		                     (unsigned long long)bytes, (unsigned long long)n);
#endif
	(void)p, (void)bytes, (void)n, (void)err;
	return GRADCOMP_OK;
}

static gradcomp_status plain_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                    gradcomp_error *err)
{
	gradcomp_status st = plain_check(instance, bytes, n, err);
	if (!st)
		through(instance, out, in, n);
	return st;
}

static gradcomp_status plain_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                        gradcomp_error *err)
{
	gradcomp_status st = plain_check(instance, bytes, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		out[i] += ((const float *)in)[i];
	return st;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = CODE_NAME,
			.version = "1.0",
			.summary = "floats as they are, with a fault",
			.licence = "MIT",
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED),
	.create = plain_create,
	.destroy = plain_destroy,
	.plan = plain_plan,
	.code_bound = plain_bound,
	.code = plain_code,
	.code_decode = plain_decode,
	.code_decode_add = plain_decode_add,
};
