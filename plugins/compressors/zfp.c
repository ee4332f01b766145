/* zfp: blocks of four numbers in a fixed count of bits each, by libzfp (Lindstrom,
 * TVCG 2014). It is a code: the collective adds floats, and codes them wherever they
 * go over a link. What is lost stays in the error memory of the rank that coded.
 *
 * zfp finds what neighbours have in common. Gradients have little, so for them the
 * plugin `block` has a smaller error at the same size; zfp is better on smooth data.
 * Of noise it loses all below 3 bits and most below 5: an error memory that gets as
 * much back as went in does not shrink.
 *
 * A run of n numbers: ceil(n / 4) blocks of 4 rate bits, but of no less than the 9
 * that a flag and an exponent take, and so many bytes. Rates 1 and 2 are therefore
 * 2.25. Any bits decode to something, and what would be larger than a float can be
 * becomes the largest, so a run that is as long as it must be cannot do harm.
 *
 * Sums of finite numbers may be Inf, of which libzfp makes anything. A piece that has one
 * begins with what libzfp never does, a block that is flagged and has an exponent of 0, and
 * comes back as NaN.
 *
 * libzfp's bit streams are made once, one for each direction, on a buffer of the
 * instance through which runs go in pieces. A piece ends where a word of libzfp's
 * does, whether it was built for words of 8 or of 64 bits. */
#include <math.h>
#include <string.h>
#include <zfp.h>

#include "gradcomp/compressor.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/passthrough.h"

enum { RATE, START_STEP };
enum { PIECE = 4096, EMPTY_BITS = 9, LEAST_RATE = 5 };
/* The first bits of a piece that is NaN: the flag is the lowest, the exponent follows. */
enum { NAN_BITS = 1, NAN_MASK = (1 << EMPTY_BITS) - 1 };

static const gradcomp_param params[] = {
	[RATE] = {.name = "rate",
                  .type = GRADCOMP_PARAM_INT,
                  .def = "8",
                  .min = 1,
                  .max = 32,
                  .help = "bits a number; 1 and 2 are 2.25, and of gradients little comes through below 5"},
	[START_STEP] = SDK_START_STEP_ROW,
};

/* One direction. Words past the piece are there for a decoder that reads ahead. */
typedef struct coder {
	zfp_stream *zfp;
	bitstream *bits;
	uint64_t words[PIECE / 2 + 16];
	float piece[PIECE];
} coder;

typedef struct zfp {
	sdk_coded c;
	uint64_t block_bits;
	coder in, out;
} zfp;

static void coder_close(coder *k)
{
	if (k->zfp)
		zfp_stream_close(k->zfp);
	if (k->bits)
		stream_close(k->bits);
}

static int coder_open(coder *k, double rate)
{
	k->bits = stream_open(k->words, sizeof k->words);
	k->zfp = zfp_stream_open(k->bits);
	if (!k->bits || !k->zfp)
		return 0;
	zfp_stream_set_rate(k->zfp, rate, zfp_type_float, 1, zfp_false);
	return 1;
}

/* Bits of a block, if every block has as many. */
static uint64_t coder_block(const coder *k)
{
	unsigned least, most;
	zfp_stream_params(k->zfp, &least, &most, NULL, NULL);
	return least == most ? most : 0;
}

static void zfp_destroy(void *instance)
{
	zfp *z = instance;
	if (!z)
		return;
	coder_close(&z->in);
	coder_close(&z->out);
	z->c.host->release(z);
}

static gradcomp_status zfp_create(const gradcomp_host *host, const gradcomp_value *values,
                                  const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	zfp *z = host->alloc(sizeof *z);
	uint64_t rate = (uint64_t)values[RATE].i;
	(void)layout;
	if (!z)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "zfp: no memory");
	z->c = (sdk_coded){.host = host, .name = "zfp", .start_step = (uint64_t)values[START_STEP].i};
	z->block_bits = 4 * rate < EMPTY_BITS ? EMPTY_BITS : 4 * rate;
	if (!coder_open(&z->in, (double)rate) || !coder_open(&z->out, (double)rate)) {
		zfp_destroy(z);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "zfp: no memory for a bit stream");
	}
	if (coder_block(&z->in) != z->block_bits) {
		uint64_t found = coder_block(&z->in), want = z->block_bits;
		zfp_destroy(z);
		return host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                  "zfp: this libzfp (%s) makes blocks of %llu bits, %llu are right for rate=%llu",
		                  zfp_version_string, (unsigned long long)found, (unsigned long long)want,
		                  (unsigned long long)rate);
	}
	if (rate < LEAST_RATE)
		host->log(host->ctx, GRADCOMP_LOG_WARN,
		          "zfp: with rate=%llu more is lost of a gradient than comes through; %d or more is right",
		          (unsigned long long)rate, LEAST_RATE);
	*instance = z;
	return GRADCOMP_OK;
}

static uint64_t zfp_bound(void *instance, uint64_t n)
{
	const zfp *z = instance;
	return ((n + 3) / 4 * z->block_bits + 7) / 8;
}

/* The blocks of a piece, one way or the other; x has room for whole blocks. */
static void blocks(coder *k, float *x, uint64_t n, size_t (*one)(zfp_stream *, float *))
{
	zfp_stream_rewind(k->zfp);
	for (uint64_t i = 0; i < n; i += 4)
		one(k->zfp, x + i);
}

static size_t encode_block(zfp_stream *s, float *x)
{
	return zfp_encode_block_float_1(s, x);
}

static gradcomp_status zfp_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                uint64_t *bytes, gradcomp_error *err)
{
	zfp *z = instance;
	char *to = out;
	(void)counter, (void)err;
	for (uint64_t i = 0; i < n; i += PIECE) {
		uint64_t count = n - i < PIECE ? n - i : PIECE, whole = (count + 3) / 4 * 4;
		int bad = 0;
		z->c.host->operators->nonfinite(NULL, in + i, count, &bad);
		if (bad) {
			memset(to, 0, zfp_bound(z, count));
			*to = NAN_BITS;
			to += zfp_bound(z, count);
			continue;
		}
		memcpy(z->out.piece, in + i, count * sizeof(float));
		/* The last block is filled up with its last number, as smooth as can be. */
		for (uint64_t j = count; j < whole; j++)
			z->out.piece[j] = in[i + count - 1];
		blocks(&z->out, z->out.piece, count, encode_block);
		zfp_stream_flush(z->out.zfp);
		memcpy(to, z->out.words, zfp_bound(z, count));
		to += zfp_bound(z, count);
	}
	*bytes = zfp_bound(z, n);
	return GRADCOMP_OK;
}

/* Decodes piece by piece onto out, or adds it. */
static gradcomp_status decode(zfp *z, const void *in, uint64_t bytes, float *out, uint64_t n, int adding,
                              gradcomp_error *err)
{
	static const float most = 0x1.fffffep127f;
	const gradcomp_operators *op = z->c.host->operators;
	const char *from = in;
	gradcomp_status s = sdk_coded_length(&z->c, bytes, zfp_bound(z, n), n, err);
	for (uint64_t i = 0; i < n && !s; i += PIECE) {
		uint64_t count = n - i < PIECE ? n - i : PIECE;
		memcpy(z->in.words, from, zfp_bound(z, count));
		if ((z->in.words[0] & NAN_MASK) == NAN_BITS) {
			op->fill(NULL, z->in.piece, NAN, count);
		} else {
			blocks(&z->in, z->in.piece, count, zfp_decode_block_float_1);
			op->clamp(NULL, z->in.piece, z->in.piece, &most, count);
		}
		if (adding)
			op->add(NULL, out + i, z->in.piece, count);
		else
			memcpy(out + i, z->in.piece, count * sizeof(float));
		from += zfp_bound(z, count);
	}
	return s;
}

static gradcomp_status zfp_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status zfp_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 1, err);
}

static gradcomp_status zfp_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                gradcomp_error *err)
{
	const zfp *z = instance;
	int dense = step < z->c.start_step;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = dense ? 4.0 * (double)bucket->numel : (double)zfp_bound(instance, bucket->numel);
	cost->passes = dense ? 0 : 150; /* about 0.13 GB/s each way */
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "zfp",
			.version = "1.0",
			.summary = "blocks of four numbers in a fixed count of bits, by libzfp",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_ERROR_FEEDBACK,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) | GRADCOMP_PATTERN_BIT(GRADCOMP_SUMMED),
	.create = zfp_create,
	.destroy = zfp_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = zfp_bound,
	.code = zfp_code,
	.code_decode = zfp_code_decode,
	.code_decode_add = zfp_code_decode_add,
	.cost = zfp_cost,
};
