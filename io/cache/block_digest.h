/* The checksum of a staged file: SHA-256 of its content when it has at most one
 * block, else SHA-256 over the SHA-256 of its blocks in order, so that blocks which
 * arrive in any order are hashed once each and prove the file. */
#ifndef IO_CACHE_BLOCK_DIGEST_H
#define IO_CACHE_BLOCK_DIGEST_H

#include <stdbool.h>

#include "base/sha256.h"

#define STAGE_BLOCK (1u << 20)

/* Belongs to one thread at a time. */
typedef struct stage_digest {
	sha256 hash;
	uint64_t blocks, next;
	unsigned char first[SHA256_BYTES];
	/* Blocks behind the next one are kept here; a power of two of them, grown as needed. */
	struct stage_digest_late *late;
	size_t capacity;
} stage_digest;

/* How many blocks a file has: one at least. */
uint64_t block_digest_blocks(uint64_t size);
void block_digest_begin(stage_digest *d, uint64_t size);
/* Takes the SHA-256 of block `number`, each once. -1: no memory. */
int block_digest_block(stage_digest *d, uint64_t number, const unsigned char digest[SHA256_BYTES]);
bool block_digest_complete(const stage_digest *d);
/* Frees it, too; of no use before it is complete but for that. */
void block_digest_end(stage_digest *d, unsigned char digest[SHA256_BYTES]);

#endif
