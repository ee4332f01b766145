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
 * A run of n numbers: n exponents (a byte each, as in a float; 0 stands for the number 0, and 255 for an Inf, which
 * a sum of finite numbers may be), then n signs (a bit each, the first in the lowest, 1 for negative): n + ceil(n /
 * 8) bytes. */
#include "gradcomp/compressor.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/random_stream.h"

enum { START_STEP };

static const gradcomp_param params[] = {
	[START_STEP] = SDK_START_STEP_ROW,
};

typedef struct natural {
	sdk_coded c;
	uint64_t seed;
	/* Where runs are coded: see code_on(). */
	const gradcomp_operators *op;
	void *queue;
} natural;

static gradcomp_status natural_create(const gradcomp_host *host, const gradcomp_value *values,
                                      const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	natural *p = host->alloc(sizeof *p);
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "natural: no memory");
	p->c = (sdk_coded){.host = host, .name = "natural", .start_step = (uint64_t)values[START_STEP].i};
	p->op = host->operators;
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

static gradcomp_status natural_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                    uint64_t *bytes, gradcomp_error *err)
{
	const natural *p = instance;
	(void)err;
	p->op->power_pack(p->queue, out, in, n, p->seed, counter, 0);
	*bytes = natural_bound(instance, n);
	return GRADCOMP_OK;
}

static gradcomp_status decode(const natural *p, const void *in, uint64_t bytes, float *out, uint64_t n, int add,
                              gradcomp_error *err)
{
	gradcomp_status st = sdk_coded_length(&p->c, bytes, n + (n + 7) / 8, n, err);
	if (!st)
		(add ? p->op->power_add : p->op->power_read)(p->queue, out, in, n, NULL); /* all bits are right */
	return st;
}

static gradcomp_status natural_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status natural_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                               gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 1, err);
}

static gradcomp_status natural_code_on(void *instance, const gradcomp_operators *operators, void *queue, int *fault,
                                       gradcomp_error *err)
{
	natural *p = instance;
	(void)fault, (void)err;
	p->op = operators;
	p->queue = queue;
	return GRADCOMP_OK;
}

static void natural_code_layout(void *instance, uint64_t n, gradcomp_code_layout *out)
{
	(void)instance;
	*out = (gradcomp_code_layout){.struct_size = sizeof *out,
	                              .grain = 8,
	                              .coding = {.struct_size = sizeof out->coding, .kind = GRADCOMP_CODING_POWERS},
	                              .values = n,
	                              .codes = (n + 7) / 8};
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
	.traits = GRADCOMP_TRAIT_UNBIASED | GRADCOMP_TRAIT_STOCHASTIC | GRADCOMP_TRAIT_CUDA,
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
	.code_on = natural_code_on,
	.code_layout = natural_code_layout,
};
