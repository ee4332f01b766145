/* natural: a number is sent as its sign and a power of two, the one below or the one above
 * it, at random so that the mean is the number (natural compression: Horvath, Ho, Horvath,
 * Sahu, Canini, Richtarik, arXiv 1905.10988, 2019). It is a code: the collective adds floats,
 * and codes them wherever they go over a link.
 *
 *     |x| = 2^e (1 + f)  becomes  2^(e+1) with probability f, else 2^e        0 stays 0
 *
 * The variance of a number is at most x^2 / 8, wherever it lies. Below 2^-126, where floats
 * have no exponent of their own, it becomes 2^-126 or 0. From 2^127 on it becomes 2^127: there
 * alone it is not right on average. There is no error memory: coding is unbiased at every hop,
 * so sums are.
 *
 * A run of n numbers: n exponents (a byte each, as in a float; 0 stands for the number 0), then
 * n signs (a bit each, the first in the lowest, 1 for negative): n + ceil(n / 8) bytes. */
#include <string.h>

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/random_stream.h"

enum { START_STEP };
enum { MANTISSA = 23, LARGEST = 254 };
enum { DRAWS = 1024, SOME = 32 }; /* numbers drawn for at a time, and coded */

static const gradcomp_param params[] = {
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct natural {
	sdk_coded c;
	uint64_t seed;
} natural;

static gradcomp_status natural_create(const gradcomp_host *host, const gradcomp_value *values,
                                      const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	natural *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "natural: no memory");
	p->c = (sdk_coded){.host = host, .name = "natural", .start_step = (uint64_t)values[START_STEP].i};
	p->seed = sdk_random_rank_seed(layout);
	*instance = p;
	return GRADCOMP_OK;
}

static void natural_destroy(void *instance)
{
	natural *p = instance;
	if (p)
		p->c.host->release(p);
}

static uint64_t natural_bound(void *instance, uint64_t n)
{
	(void)instance;
	return n + (n + 7) / 8;
}

/* The exponents that stand for numbers of these bits. Both sides of the comparison are multiples
 * of 2^-24. */
static void exponents_of(uint8_t *out, const uint32_t *bits, const float *draw)
{
	for (int i = 0; i < SOME; i++) {
		uint32_t magnitude = bits[i] & 0x7fffffff, e = magnitude >> MANTISSA;
		float fraction = (float)(int32_t)(magnitude & ((1u << MANTISSA) - 1)) * 0x1p-23f;
		e += draw[i] < fraction;
		out[i] = (uint8_t)(e > LARGEST ? LARGEST : e);
	}
}

static gradcomp_status natural_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                    uint64_t *bytes, gradcomp_error *err)
{
	const natural *p = instance;
	const gradcomp_operators *op = p->c.host->operators;
	uint8_t *exponents = out, *signs = exponents + n;
	float draw[DRAWS] = {0};
	uint32_t bits[DRAWS] = {0}, words[DRAWS / 32];
	uint8_t coded[DRAWS];
	(void)err;
	for (uint64_t at = 0; at < n; at += DRAWS) {
		uint64_t some = n - at < DRAWS ? n - at : DRAWS;
		op->random_uniform(NULL, draw, some, p->seed, counter, at);
		memcpy(bits, in + at, some * sizeof *bits);
		for (uint64_t i = 0; i < some; i += SOME)
			exponents_of(coded + i, bits + i, draw + i);
		memcpy(exponents + at, coded, some);
		op->sign_pack(NULL, words, in + at, some, DRAWS);
		memcpy(signs + at / 8, words, (some + 7) / 8);
	}
	*bytes = natural_bound(instance, n);
	return GRADCOMP_OK;
}

static gradcomp_status checked(const natural *p, const uint8_t *exponents, uint64_t bytes, uint64_t n,
                               gradcomp_error *err)
{
	unsigned most = 0;
	gradcomp_status st = sdk_coded_length(&p->c, bytes, n + (n + 7) / 8, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		most = exponents[i] > most ? exponents[i] : most;
	return st || most <= LARGEST
	               ? st
	               : p->c.host->fail(err, GRADCOMP_ERR_MISMATCH,
	                                 "natural: a run of %llu numbers came with an exponent of 255, which is no number's",
	                                 (unsigned long long)n);
}

static float value(const uint8_t *exponents, const uint8_t *signs, uint64_t i)
{
	uint32_t bits = (uint32_t)exponents[i] << MANTISSA | (uint32_t)(signs[i / 8] >> i % 8 & 1) << 31;
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

static gradcomp_status natural_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	const uint8_t *exponents = in, *signs = exponents + n;
	gradcomp_status st = checked(instance, in, bytes, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		out[i] = value(exponents, signs, i);
	return st;
}

static gradcomp_status natural_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                               gradcomp_error *err)
{
	const uint8_t *exponents = in, *signs = exponents + n;
	gradcomp_status st = checked(instance, in, bytes, n, err);
	for (uint64_t i = 0; !st && i < n; i++)
		out[i] += value(exponents, signs, i);
	return st;
}

static gradcomp_status natural_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                    gradcomp_error *err)
{
	const natural *p = instance;
	int dense = step < p->c.start_step;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense ? 4.0 * (double)bucket->numel : (double)natural_bound(instance, bucket->numel);
	cost->passes = dense ? 0 : 5;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "natural",
			.version = "1.0",
			.summary = "signs and powers of two, at random without bias, 9 bits a number",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_STOCHASTIC,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = natural_create,
	.destroy = natural_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = natural_bound,
	.code = natural_code,
	.code_decode = natural_code_decode,
	.code_decode_add = natural_code_decode_add,
	.cost = natural_cost,
};
