/* The compressor `lossless`: a plane of bytes (gradcomp/sdk/planes.h) through LZ4 or zstd, as far as
 * they are in this build. */
#ifndef PLUGINS_COMPRESSORS_LOSSLESS_LOSSLESS_H
#define PLUGINS_COMPRESSORS_LOSSLESS_LOSSLESS_H

#include "gradcomp/compressor.h"

/* Numbers that go through together. zstd's smallest tables are for 16 KiB. */
enum { PIECE = 16384 };

enum { CODEC_ZSTD, CODEC_LZ4, CODECS };
extern const char *const codec_names[CODECS + 1];
#if defined HAVE_ZSTD
#define CODEC_DEFAULT "zstd"
#else
#define CODEC_DEFAULT "lz4"
#endif

/* A codec's contexts: one to pack with and one to unpack with. */
typedef struct plane_codec {
	const gradcomp_host *host;
	int codec, level;
	void *pack, *unpack; /* the library works in these */
	void *packer, *unpacker;
} plane_codec;

gradcomp_status plane_codec_check(const gradcomp_host *host, int codec, int64_t level, gradcomp_error *err);
/* On failure there is nothing to close. */
gradcomp_status plane_codec_open(plane_codec *c, const gradcomp_host *host, int codec, int level, gradcomp_error *err);
void plane_codec_close(plane_codec *c);

/* Packs n bytes into less than n; 0 when they do not fit. n <= PIECE. */
uint64_t plane_pack(const plane_codec *c, uint8_t *out, const uint8_t *in, uint64_t n);
/* Unpacks n bytes; returns 1 when `bytes` bytes of `in`, which may be anything, were so many. */
int plane_unpack(const plane_codec *c, uint8_t *out, uint64_t n, const uint8_t *in, uint64_t bytes);

#endif
