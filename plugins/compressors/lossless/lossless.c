/* lossless: numbers are sent as they are, to the bit, in fewer bytes when they have
 * something in common. It is a code: the collective adds floats, and codes them
 * wherever they go over a link, so the average is the one of `none`.
 *
 * Floats are taken apart into planes of bytes (Shuffle: HDF5; bit planes for LZ4:
 * Masui et al., Astronomy and Computing 2015), because what gradients have in common
 * is the exponent; and LZ4 or zstd packs each plane for itself. Mantissas of a
 * gradient that was computed in 32 bits are noise and stay as long as they are; of
 * one that was computed in 16, half of the planes are zero.
 *
 * A run is coded in pieces of 16384 numbers. A piece of n: four lengths of two bytes,
 * the lowest plane's first, the largest exponent, and the planes, each
 *
 *     length 0        n bytes of zero
 *     length n        as it is: it would not pack
 *     another length  packed
 *
 * 4 n + 9 bytes at the most. */
#include <stdbool.h>
#include <string.h>

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/planes.h"
#include "plugins/compressors/lossless/lossless.h"

enum { CODEC, LEVEL };
enum { HEAD = 2 * SDK_PLANES + 1 };

static const gradcomp_param params[] = {
	[CODEC] = {.name = "codec",
                   .type = GRADCOMP_PARAM_CHOICE,
                   .def = CODEC_DEFAULT,
                   .choices = codec_names,
                   .help = "zstd packs exponents better, lz4 is faster"},
	[LEVEL] = {.name = "level",
                   .type = GRADCOMP_PARAM_INT,
                   .def = "1",
                   .min = 1,
                   .max = 19,
                   .help = "of the codec: higher is slower and seldom smaller; lz4 ends at 9"},
};

/* Each direction has its workspace. */
typedef struct lossless {
	sdk_coded c;
	plane_codec codec;
	uint8_t out[SDK_PLANES][PIECE], out_turned[PIECE];
	uint8_t in[SDK_PLANES][PIECE], in_turned[PIECE];
	float piece[PIECE];
} lossless;

static gradcomp_status lossless_check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	return plane_codec_check(host, (int)values[CODEC].i, values[LEVEL].i, err);
}

static gradcomp_status lossless_create(const gradcomp_host *host, const gradcomp_value *values,
                                       const gradcomp_layout *layout, void **instance, gradcomp_error *err)
{
	gradcomp_status s = lossless_check(host, values, err);
	lossless *l = s ? NULL : host->alloc(sizeof *l);
	(void)layout;
	if (s)
		return s;
	if (!l)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "lossless: no memory");
	l->c = (sdk_coded){.host = host, .name = "lossless"};
	s = plane_codec_open(&l->codec, host, (int)values[CODEC].i, (int)values[LEVEL].i, err);
	if (s)
		host->release(l);
	else
		*instance = l;
	return s;
}

static void lossless_destroy(void *instance)
{
	lossless *l = instance;
	if (!l)
		return;
	plane_codec_close(&l->codec);
	l->c.host->release(l);
}

static uint64_t lossless_bound(void *instance, uint64_t n)
{
	(void)instance;
	return 4 * n + (n + PIECE - 1) / PIECE * HEAD;
}

static bool is_zero(const uint8_t *p, uint64_t n)
{
	return !p[0] && !memcmp(p, p + 1, n - 1);
}

/* Bytes of a plane of n. */
static uint64_t code_plane(lossless *l, uint8_t *out, const uint8_t *plane, uint64_t n)
{
	uint64_t bytes;
	if (is_zero(plane, n))
		return 0;
	if (l->codec.codec == CODEC_LZ4) {
		sdk_planes_turn(l->out_turned, plane, n);
		plane = l->out_turned;
	}
	bytes = plane_pack(&l->codec, out, plane, n);
	if (bytes)
		return bytes;
	memcpy(out, plane, n);
	return n;
}

static gradcomp_status lossless_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                                     uint64_t *bytes, gradcomp_error *err)
{
	lossless *l = instance;
	uint8_t *to = out;
	(void)counter, (void)err;
	for (uint64_t i = 0; i < n; i += PIECE) {
		uint64_t count = n - i < PIECE ? n - i : PIECE;
		uint8_t *head = to;
		head[HEAD - 1] = sdk_planes_split(l->out[0], PIECE, in + i, count);
		to += HEAD;
		for (int k = 0; k < SDK_PLANES; k++) {
			uint64_t length = code_plane(l, to, l->out[k], count);
			head[2 * k] = (uint8_t)length;
			head[2 * k + 1] = (uint8_t)(length >> 8);
			to += length;
		}
	}
	*bytes = (uint64_t)(to - (uint8_t *)out);
	return GRADCOMP_OK;
}

/* Holds what is left of a run that is being decoded. */
typedef struct rest {
	const uint8_t *at;
	uint64_t bytes;
} rest;

static int decode_plane(lossless *l, uint8_t *plane, uint64_t n, rest *from, uint64_t length)
{
	uint8_t *to = l->codec.codec == CODEC_LZ4 ? l->in_turned : plane;
	if (length > n || length > from->bytes)
		return 0;
	if (!length) {
		memset(plane, 0, n);
		return 1;
	}
	if (length == n)
		memcpy(to, from->at, n);
	else if (!plane_unpack(&l->codec, to, n, from->at, length))
		return 0;
	if (to != plane)
		sdk_planes_turn_back(plane, to, n);
	from->at += length;
	from->bytes -= length;
	return 1;
}

static int decode_piece(lossless *l, float *out, uint64_t n, rest *from)
{
	const uint8_t *head = from->at;
	if (from->bytes < HEAD)
		return 0;
	from->at += HEAD;
	from->bytes -= HEAD;
	for (int k = 0; k < SDK_PLANES; k++)
		if (!decode_plane(l, l->in[k], n, from, head[2 * k] | (uint64_t)head[2 * k + 1] << 8))
			return 0;
	sdk_planes_join(out, l->in[0], PIECE, head[HEAD - 1], n);
	return 1;
}

/* Decodes piece by piece onto out, or adds it. */
static gradcomp_status decode(lossless *l, const void *in, uint64_t bytes, float *out, uint64_t n, int adding,
                              gradcomp_error *err)
{
	rest from = {in, bytes};
	int right = 1;
	for (uint64_t i = 0; right && i < n; i += PIECE) {
		uint64_t count = n - i < PIECE ? n - i : PIECE;
		right = decode_piece(l, adding ? l->piece : out + i, count, &from);
		if (right && adding)
			l->c.host->operators->add(NULL, out + i, l->piece, count);
	}
	if (right && !from.bytes)
		return GRADCOMP_OK;
	return l->c.host->fail(err, GRADCOMP_ERR_MISMATCH,
	                       "lossless: %llu bytes that came for a run of %llu numbers are not what %s packs",
	                       (unsigned long long)bytes, (unsigned long long)n, codec_names[l->codec.codec]);
}

static gradcomp_status lossless_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 0, err);
}

static gradcomp_status lossless_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                           gradcomp_error *err)
{
	return decode(instance, in, bytes, out, n, 1, err);
}

/* Bytes as if nothing packed: what does depends on the gradients. */
static gradcomp_status lossless_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                                     gradcomp_error *err)
{
	(void)step, (void)err;
	cost->rounds = 1;
	cost->wire_bytes = (double)lossless_bound(instance, bucket->numel);
	cost->passes = 30;
	return GRADCOMP_OK;
}

GRADCOMP_EXPORT const struct gradcomp_compressor_v1 gradcomp_compressor_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof gradcomp_compressor_v1,
			.name = "lossless",
			.version = "1.0",
			.summary = "the same numbers to the bit, their exponents packed by LZ4 or zstd",
			.licence = "MIT",
			.params = params,
			.nparams = sizeof params / sizeof params[0],
		},
	.traits = GRADCOMP_TRAIT_LOSSLESS | GRADCOMP_TRAIT_PASSES_NONFINITE,
	.patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED),
	.check = lossless_check,
	.create = lossless_create,
	.destroy = lossless_destroy,
	.plan = sdk_coded_plan,
	.encode = sdk_coded_encode,
	.decode = sdk_coded_decode,
	.code_bound = lossless_bound,
	.code = lossless_code,
	.code_decode = lossless_decode,
	.code_decode_add = lossless_decode_add,
	.cost = lossless_cost,
};
