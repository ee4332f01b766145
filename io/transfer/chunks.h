/* A dataset as a stream of chunks: its files in the order of the manifest, large
 * ones cut into blocks, small ones packed together. All nodes have the same manifest
 * and the same set of files that any of them needs, so they have the same stream.
 *
 * Between nodes a chunk is two messages. The first is its header:
 *
 *     magic "gcpd", flags (little-endian, 32 bits each), number, end, sum (64 bits each),
 *     pages (32 bytes: of a chunk with holes, a bit for each 4 KiB that follows)
 *
 * The second is the SHA-256 of each part and the bytes. `sum` is its XXH64: who receives it compares that, and need
 * not hash it again for the manifest. A part is a file of a batch, or the block of a large file. `end` is the
 * number of the first chunk that is not sent any more. */
#ifndef IO_TRANSFER_CHUNKS_H
#define IO_TRANSFER_CHUNKS_H

#include "io/cache/block_digest.h"
#include "io/cache/cache.h"

#define CHUNK_FILES 256 /* parts of a batch at most */
#define CHUNK_HEAD 64
#define CHUNK_MESSAGE_MAX (CHUNK_HEAD + CHUNK_FILES * SHA256_BYTES + STAGE_BLOCK)
#define CHUNK_PAGE 4096u
/* In a header: a node has failed or stops, and there is no second message. */
#define CHUNK_STOP 1u

typedef struct stage_chunk {
	uint64_t number;
	size_t first;   /* entry of the (first) file */
	uint32_t parts; /* 0: there is no such chunk */
	uint32_t bytes;
	uint64_t at; /* in a large file */
	bool large;
	bool holes; /* large, and the file may have holes */
} stage_chunk;

/* Entries by number, a bit each. */
static inline bool entry_bit(const unsigned char *bits, size_t i)
{
	return bits[i / 8] >> (i % 8) & 1;
}

static inline void entry_bit_set(unsigned char *bits, size_t i)
{
	bits[i / 8] |= (unsigned char)(1u << (i % 8));
}

typedef struct chunk_cursor {
	const stage_manifest *m;
	const unsigned char *needed; /* files that are in the stream */
	size_t entry;
	uint64_t at, number;
} chunk_cursor;

/* False behind the last one. */
bool chunk_next(chunk_cursor *c, stage_chunk *p);
/* The first file of the stream at or behind entry i; m->n when there is none. */
size_t chunk_file(const stage_manifest *m, const unsigned char *needed, size_t i);

void chunk_head(unsigned char *message, const stage_chunk *p, uint32_t flags, uint64_t end);
/* Set and check the checksum of the second message, which is complete. */
void chunk_sum(unsigned char *message, size_t bytes);
bool chunk_sum_check(const unsigned char *message, size_t bytes);
/* Changes the header of a chunk that is sent on. */
void chunk_head_end(unsigned char *message, uint64_t end);
/* False: not the header of this chunk. */
bool chunk_head_check(const unsigned char *message, const stage_chunk *p, uint32_t *flags, uint64_t *end);

static inline unsigned char *chunk_digest(unsigned char *message, uint32_t part)
{
	return message + CHUNK_HEAD + (size_t)part * SHA256_BYTES;
}

static inline unsigned char *chunk_bytes(unsigned char *message, const stage_chunk *p)
{
	return message + CHUNK_HEAD + (size_t)p->parts * SHA256_BYTES;
}

/* Packs a chunk with holes: leaves the pages that are not zero, one after another, and marks them in the header.
 * Returns their bytes. */
uint32_t chunk_pack(unsigned char *message, const stage_chunk *p);
/* Their bytes, by the header; -1 when it says more than there are. */
int64_t chunk_packed(const unsigned char *message, const stage_chunk *p);
/* Calls each() for runs of bytes of a chunk with holes, in order; data is NULL for a
 * hole. Ends with the first that returns non-zero, and returns that. */
int chunk_runs(const unsigned char *message, const stage_chunk *p,
               int (*each)(void *ctx, uint32_t at, const unsigned char *data, uint32_t n), void *ctx);

#endif
