/* fp8: numbers are sent as 8-bit floats; `block` of them share a scale (types: Micikevicius et
 * al., FP8 formats for deep learning, arXiv 2209.05433; OCP 8-bit floating point specification
 * 1.0; scales of a byte: OCP microscaling formats specification 1.0). It is a code: the
 * collective adds floats, and codes them wherever they go over a link.
 *
 *     value = scale * code        scale f32: the block's largest magnitude is the type's largest
 *                                 scale e8m0: 2^(exponent of the largest magnitude - that of the type's)
 *
 * e4m3 has 3 bits of mantissa and ends at 448, e5m2 has 2 and ends at 57344. Rounding is to nearest
 * even, and what is too large for the type becomes its largest: with e8m0 numbers of up to 1.14
 * times that. What a rank's codes lose stays in that rank's error memory. No number becomes a NaN
 * or an Inf, and a code that is one is refused.
 *
 * A run of n numbers: ceil(n / block) scales, F32 or a byte with a bias of 127, then n codes:
 * (4 or 1) ceil(n / block) + n bytes. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/passthrough.h"

enum { TYPE, BLOCK, SCALES, START_STEP };
enum { SOME = 1024, BIAS = 127 };

static const char *const types[] = {"e4m3", "e5m2", NULL};
static const char *const scales[] = {"f32", "e8m0", NULL};
static const gradcomp_param params[] = {
	[TYPE] = {.name = "type",
                  .type = GRADCOMP_PARAM_CHOICE,
                  .def = "e4m3",
                  .choices = types,
                  .help = "bits of exponent and mantissa"},
	[BLOCK] = {.name = "block",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "128",
                   .min = 32,
                   .max = 65536,
                   .help = "numbers that share a scale, a multiple of 32"},
	[SCALES] = {.name = "scales",
                    .type = GRADCOMP_PARAM_CHOICE,
                    .def = "f32",
                    .choices = scales,
                    .help = "e8m0: powers of two in a byte, as in microscaling formats, whose blocks have 32"},
	[START_STEP] = SDK_START_STEP_ROW,
};

/* What OCP says of a type. */
typedef struct format {
	gradcomp_dtype dtype;
	float largest;
	int exponent;  /* of the largest */
	uint8_t most;  /* code of the largest; those above it are NaN and Inf */
} format;

static const format formats[] = {{GRADCOMP_F8E4M3, 448, 8, 0x7e}, {GRADCOMP_F8E5M2, 57344, 15, 0x7b}};

typedef struct fp8 {
	sdk_coded c;
	format f;
	uint64_t block;
	uint64_t scale_bytes;
	float most_scale; /* of which the largest code is a finite number */
} fp8;

static gradcomp_status fp8_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	if (values[BLOCK].i % 32 == 0)
		return GRADCOMP_OK;
	return host->fail(err, GRADCOMP_ERR_INVALID, "fp8: block=%lld: give a multiple of 32 from 32 to 65536",
	                  (long long)values[BLOCK].i);
}

static gradcomp_status fp8_create(const gradcomp_host *host, const gradcomp_value *values,
                                  const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	gradcomp_status st = fp8_check(host, values, err);
	fp8 *p = st ? NULL : host->alloc(sizeof *p);
	(void)layout;
	if (st)
		return st;
	if (!p)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "fp8: no memory");
	p->c = (sdk_coded){.host = host, .name = "fp8", .start_step = (uint64_t)values[START_STEP].i};
	p->f = formats[values[TYPE].i];
	p->block = (uint64_t)values[BLOCK].i;
	p->scale_bytes = values[SCALES].i ? 1 : sizeof(float);
	p->most_scale = FLT_MAX / p->f.largest;
	while (p->most_scale * p->f.largest > FLT_MAX)
		p->most_scale = nextafterf(p->most_scale, 0);
	*instance = p;
	return GRADCOMP_OK;
}

static void fp8_destroy(void *instance)
{
	fp8 *p = instance;
	if (p)
		p->c.host->release(p);
}

static uint64_t blocks_of(const fp8 *p, uint64_t n)
{
	return (n + p->block - 1) / p->block;
}

static uint64_t fp8_bound(void *instance, uint64_t n)
{
	const fp8 *p = instance;
	return blocks_of(p, n) * p->scale_bytes + n;
}

static float largest_of(const float *x, uint64_t n)
{
	uint32_t most = 0, bits;
	float largest;
	for (uint64_t i = 0; i < n; i++) {
		memcpy(&bits, &x[i], sizeof bits);
		bits &= 0x7fffffff;
		most = bits > most ? bits : most;
	}
	memcpy(&largest, &most, sizeof largest);
	return largest;
}

/* A block's scale and where it is written; 0 when all its numbers are too small for one. */
static float scale_make(const fp8 *p, uint8_t *to, float largest)
{
	if (p->scale_bytes == 1) {
		int e = 0, least = p->f.exponent - BIAS;
		frexpf(largest, &e);
		e = largest > 0 && e - 1 > least ? e - 1 : least;
		*to = (uint8_t)(e - least);
		return ldexpf(1, e - p->f.exponent);
	}
	float scale = largest / p->f.largest;
	scale = scale < FLT_MIN ? 0 : scale > p->most_scale ? p->most_scale : scale;
	memcpy(to, &scale, sizeof scale);
	return scale;
}

static float scale_read(const fp8 *p, const uint8_t *from)
{
	float scale;
	if (p->scale_bytes == 1)
		return ldexpf(1, *from - BIAS);
	memcpy(&scale, from, sizeof scale);
	return scale;
}

static gradcomp_status fp8_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err)
{
	const fp8 *p = instance;
	const gradcomp_operators *op = p->c.host->operators;
	uint8_t *to = out, *codes = to + blocks_of(p, n) * p->scale_bytes;
	gradcomp_status st = GRADCOMP_OK;
	(void)counter;
	for (uint64_t at = 0; !st && at < n; at += p->block, to += p->scale_bytes) {
		uint64_t some = n - at < p->block ? n - at : p->block;
		float scale = scale_make(p, to, largest_of(in + at, some));
		if (scale > 0)
			st = op->cast_scaled(NULL, codes + at, in + at, some, p->f.dtype, 1 / scale, p->f.largest);
		else
			memset(codes + at, 0, some);
	}
	*bytes = fp8_bound(instance, n);
	return st ? p->c.host->fail(err, st, "fp8: these operators cannot write 8-bit floats") : st;
}

static gradcomp_status checked(const fp8 *p, const uint8_t *in, uint64_t bytes, uint64_t n, gradcomp_error *err)
{
	const uint8_t *codes = in + blocks_of(p, n) * p->scale_bytes;
	int bad = 0;
	gradcomp_status st = sdk_coded_length(&p->c, bytes, blocks_of(p, n) * p->scale_bytes + n, n, err);
	if (st)
		return st;
	for (uint64_t b = 0; b < blocks_of(p, n); b++) {
		float scale = scale_read(p, in + b * p->scale_bytes);
		bad |= !(scale >= 0 && scale <= p->most_scale);
	}
	for (uint64_t i = 0; i < n; i++)
		bad |= (codes[i] & 0x7f) > p->f.most;
	return !bad ? GRADCOMP_OK
	            : p->c.host->fail(err, GRADCOMP_ERR_MISMATCH,
	                              "fp8: a run of %llu numbers came with a code that is NaN or Inf, or a scale that is not "
	                              "between 0 and %g",
	                              (unsigned long long)n, (double)p->most_scale);
}

/* add: out += what is decoded. */
static gradcomp_status decode(const fp8 *p, const uint8_t *in, uint64_t bytes, float *out, uint64_t n, int add,
                              gradcomp_error *err)
{
	const gradcomp_operators *op = p->c.host->operators;
	const uint8_t *codes = in + blocks_of(p, n) * p->scale_bytes;
	gradcomp_status st = checked(p, in, bytes, n, err);
	float read[SOME];
	if (st)
		return st;
	for (uint64_t at = 0, end; !st && at < n; at = end) {
		uint64_t block = at / p->block;
		float scale = scale_read(p, in + block * p->scale_bytes);
		end = (block + 1) * p->block < n ? (block + 1) * p->block : n;
		end = end - at > SOME ? at + SOME : end;
		st = op->cast_to_f32(NULL, add ? read : out + at, codes + at, end - at, p->f.dtype);
		if (add)
			op->axpy(NULL, out + at, scale, read, end - at);
		else
			op->scale(NULL, out + at, scale, end - at);
	}
	return st ? p->c.host->fail(err, st, "fp8: these operators cannot read 8-bit floats") : st;
}

static gradcomp_status fp8_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status fp8_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 1, err);
}

static gradcomp_status fp8_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err)
{
	const fp8 *p = instance;
	int dense = step < p->c.start_step;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense ? 4.0 * (double)bucket->numel : (double)fp8_bound(instance, bucket->numel);
	cost->passes = dense ? 0 : 5;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "fp8",
			.version = "1.0",
			.summary = "8-bit floats, a scale for each block of numbers",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.check = fp8_check,
	.create = fp8_create,
	.destroy = fp8_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = fp8_bound,
	.code = fp8_code,
	.code_decode = fp8_code_decode,
	.code_decode_add = fp8_code_decode_add,
	.cost = fp8_cost,
};
