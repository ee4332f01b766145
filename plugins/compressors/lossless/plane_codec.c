/* Contexts are set up in memory of the host once and for all, so that no library
 * allocates in a step. */
#include "plugins/compressors/lossless/lossless.h"

#ifdef HAVE_ZSTD
#define ZSTD_STATIC_LINKING_ONLY /* contexts in memory of our own */
#include <zstd.h>
#endif
#ifdef HAVE_LZ4
#include <lz4.h>
#include <lz4hc.h>
#endif

/* LZ4's levels from 10 on allocate. */
enum { LZ4_FIRST_HC = 3, LZ4_LEVELS = 9 };

const char *const codec_names[] = {"zstd", "lz4", NULL};

static const struct {
	int built, levels;
	const char *package;
} codecs[] = {
#ifdef HAVE_ZSTD
	[CODEC_ZSTD] = {1, 19, "libzstd-dev"},
#else
	[CODEC_ZSTD] = {0, 19, "libzstd-dev"},
#endif
#ifdef HAVE_LZ4
	[CODEC_LZ4] = {1, LZ4_LEVELS, "liblz4-dev"},
#else
	[CODEC_LZ4] = {0, LZ4_LEVELS, "liblz4-dev"},
#endif
};

gradcomp_status plane_codec_check(const gradcomp_host *host, int codec, int64_t level, gradcomp_error *err)
{
	if (!codecs[codec].built)
		return host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                  "lossless: codec=%s is not in this build of gradcomp, which found no %s; codec=%s is",
		                  codec_names[codec], codecs[codec].package, codec_names[!codec]);
	if (level > codecs[codec].levels)
		return host->fail(err, GRADCOMP_ERR_INVALID, "lossless: level=%lld: %s has levels 1 to %d",
		                  (long long)level, codec_names[codec], codecs[codec].levels);
	return GRADCOMP_OK;
}

static size_t pack_room(const plane_codec *c)
{
#ifdef HAVE_LZ4
	if (c->codec == CODEC_LZ4)
		return (size_t)(c->level < LZ4_FIRST_HC ? LZ4_sizeofState() : LZ4_sizeofStateHC());
#endif
#ifdef HAVE_ZSTD
	if (c->codec == CODEC_ZSTD)
		return ZSTD_estimateCCtxSize_usingCParams(ZSTD_getCParams(c->level, PIECE, 0));
#endif
	return 0;
}

static size_t unpack_room(const plane_codec *c)
{
#ifdef HAVE_ZSTD
	if (c->codec == CODEC_ZSTD)
		return ZSTD_estimateDCtxSize();
#endif
	(void)c;
	return 0;
}

void plane_codec_close(plane_codec *c)
{
	c->host->release(c->pack);
	c->host->release(c->unpack);
}

gradcomp_status plane_codec_open(plane_codec *c, const gradcomp_host *host, int codec, int level, gradcomp_error *err)
{
	size_t pack, unpack;
	*c = (plane_codec){.host = host, .codec = codec, .level = level};
	pack = pack_room(c), unpack = unpack_room(c);
	c->pack = c->packer = host->alloc(pack);
	c->unpack = c->unpacker = host->alloc(unpack + 1);
#ifdef HAVE_ZSTD
	if (codec == CODEC_ZSTD && c->pack && c->unpack) {
		c->packer = ZSTD_initStaticCCtx(c->pack, pack);
		c->unpacker = ZSTD_initStaticDCtx(c->unpack, unpack);
	}
#endif
	if (c->packer && c->unpacker)
		return GRADCOMP_OK;
	plane_codec_close(c);
	return host->fail(err, GRADCOMP_ERR_NOMEM, "lossless: no memory for %s", codec_names[codec]);
}

uint64_t plane_pack(const plane_codec *c, uint8_t *out, const uint8_t *in, uint64_t n)
{
	uint64_t bytes = 0;
	if (n < 2)
		return 0;
#ifdef HAVE_LZ4
	if (c->codec == CODEC_LZ4)
		bytes = (uint64_t)(c->level < LZ4_FIRST_HC
		                           ? LZ4_compress_fast_extState(c->packer, (const char *)in, (char *)out,
		                                                        (int)n, (int)n - 1, 1)
		                           : LZ4_compress_HC_extStateHC(c->packer, (const char *)in, (char *)out,
		                                                        (int)n, (int)n - 1, c->level));
#endif
#ifdef HAVE_ZSTD
	if (c->codec == CODEC_ZSTD) {
		size_t made = ZSTD_compressCCtx(c->packer, out, n - 1, in, n, c->level);
		bytes = ZSTD_isError(made) ? 0 : made;
	}
#endif
	(void)out, (void)in;
	return bytes;
}

int plane_unpack(const plane_codec *c, uint8_t *out, uint64_t n, const uint8_t *in, uint64_t bytes)
{
#ifdef HAVE_LZ4
	if (c->codec == CODEC_LZ4)
		return LZ4_decompress_safe((const char *)in, (char *)out, (int)bytes, (int)n) == (int)n;
#endif
#ifdef HAVE_ZSTD
	if (c->codec == CODEC_ZSTD)
		return ZSTD_decompressDCtx(c->unpacker, out, n, in, bytes) == n;
#endif
	(void)c, (void)out, (void)n, (void)in, (void)bytes;
	return 0;
}
