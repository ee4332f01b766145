/* Checksums of files whose blocks come in any order. */
#include <stdlib.h>
#include <string.h>

#include "io/cache/block_digest.h"

struct stage_digest_late {
	bool there;
	unsigned char digest[SHA256_BYTES];
};

uint64_t block_digest_blocks(uint64_t size)
{
	return size ? (size - 1) / STAGE_BLOCK + 1 : 1;
}

void block_digest_begin(stage_digest *d, uint64_t size)
{
	*d = (stage_digest){.blocks = block_digest_blocks(size)};
	sha256_init(&d->hash);
}

/* Grows the table until it has space for block `number`, and moves the others. */
static int grow(stage_digest *d, uint64_t number)
{
	size_t capacity = d->capacity ? d->capacity : 16;
	while (number - d->next >= capacity)
		capacity *= 2;
	if (capacity == d->capacity)
		return 0;
	struct stage_digest_late *late = calloc(capacity, sizeof *late);
	if (!late)
		return -1;
	for (uint64_t i = d->next; i < d->next + d->capacity; i++)
		late[i & (capacity - 1)] = d->late[i & (d->capacity - 1)];
	free(d->late);
	d->late = late;
	d->capacity = capacity;
	return 0;
}

static void take(stage_digest *d, const unsigned char digest[SHA256_BYTES])
{
	if (!d->next)
		memcpy(d->first, digest, SHA256_BYTES);
	sha256_update(&d->hash, digest, SHA256_BYTES);
	d->next++;
}

int block_digest_block(stage_digest *d, uint64_t number, const unsigned char digest[SHA256_BYTES])
{
	if (number != d->next) {
		if (grow(d, number) < 0)
			return -1;
		struct stage_digest_late *l = &d->late[number & (d->capacity - 1)];
		l->there = true;
		memcpy(l->digest, digest, SHA256_BYTES);
		return 0;
	}
	take(d, digest);
	for (struct stage_digest_late *l; d->capacity && (l = &d->late[d->next & (d->capacity - 1)])->there;) {
		l->there = false;
		take(d, l->digest);
	}
	return 0;
}

bool block_digest_complete(const stage_digest *d)
{
	return d->next == d->blocks;
}

void block_digest_end(stage_digest *d, unsigned char digest[SHA256_BYTES])
{
	if (d->blocks > 1)
		sha256_final(&d->hash, digest);
	else
		memcpy(digest, d->first, SHA256_BYTES);
	free(d->late);
	d->late = NULL;
	d->capacity = 0;
}
