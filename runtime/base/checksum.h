/* XXH64 (xxHash specification, 0.8), a checksum of 64 bits against bytes that were
 * damaged by accident: quick, and the same number on every machine. It is no
 * protection against somebody who changes bytes on purpose. Nothing fails, nothing
 * is allocated; a context belongs to one thread at a time. */
#ifndef BASE_CHECKSUM_H
#define BASE_CHECKSUM_H

#include <stddef.h>
#include <stdint.h>

typedef struct checksum {
	uint64_t lane[4];
	uint64_t bytes, seed; /* taken so far */
	unsigned char block[32];
} checksum;

void checksum_init(checksum *c, uint64_t seed);
void checksum_update(checksum *c, const void *data, size_t bytes);
uint64_t checksum_final(const checksum *c);
/* All of it at once. */
uint64_t checksum_of(const void *data, size_t bytes, uint64_t seed);

#endif
