/* Cutting a dataset into chunks, and what a chunk looks like as a message. */
#include <string.h>
#include <xxhash.h>

#include "io/transfer/chunks.h"
#include "transport/wire/wire.h"

#define MAGIC 0x64706367u /* "gcpd" */
#define SUM 24
#define MASK 32 /* where the pages of a head begin */

size_t chunk_file(const stage_manifest *m, const unsigned char *needed, size_t i)
{
	while (i < m->n && !(m->entries[i].type == STAGE_FILE && entry_bit(needed, i)))
		i++;
	return i;
}

static void take_block(chunk_cursor *c, stage_chunk *p)
{
	const stage_entry *e = &c->m->entries[c->entry];
	uint64_t rest = e->size - c->at;
	*p = (stage_chunk){.first = c->entry, .parts = 1, .at = c->at, .large = true, .holes = e->stored < e->size};
	p->bytes = rest < STAGE_BLOCK ? (uint32_t)rest : STAGE_BLOCK;
	c->at += p->bytes;
	if (c->at < e->size)
		return;
	c->at = 0;
	c->entry++;
}

bool chunk_next(chunk_cursor *c, stage_chunk *p)
{
	const stage_entry *e = c->m->entries;
	c->entry = chunk_file(c->m, c->needed, c->entry);
	if (c->entry == c->m->n)
		return false;
	if (e[c->entry].size > STAGE_BLOCK) {
		take_block(c, p);
	} else {
		*p = (stage_chunk){.first = c->entry};
		while (c->entry < c->m->n && p->parts < CHUNK_FILES && p->bytes + e[c->entry].size <= STAGE_BLOCK) {
			p->bytes += (uint32_t)e[c->entry].size;
			p->parts++;
			c->entry = chunk_file(c->m, c->needed, c->entry + 1);
		}
	}
	p->number = c->number++;
	return true;
}

void chunk_head(unsigned char *message, const stage_chunk *p, uint32_t flags, uint64_t end)
{
	put32(message, MAGIC);
	put32(message + 4, flags);
	put64(message + 8, p->number);
	put64(message + 16, end);
	memset(message + SUM, 0, CHUNK_HEAD - SUM);
}

void chunk_sum(unsigned char *message, size_t bytes)
{
	put64(message + SUM, XXH64(message + CHUNK_HEAD, bytes, 0));
}

bool chunk_sum_check(const unsigned char *message, size_t bytes)
{
	return get64(message + SUM) == XXH64(message + CHUNK_HEAD, bytes, 0);
}

void chunk_head_end(unsigned char *message, uint64_t end)
{
	put64(message + 16, end);
}

bool chunk_head_check(const unsigned char *message, const stage_chunk *p, uint32_t *flags, uint64_t *end)
{
	*flags = get32(message + 4);
	*end = get64(message + 16);
	return get32(message) == MAGIC && !(*flags & ~CHUNK_STOP) && get64(message + 8) == p->number &&
	       *end > p->number;
}

static uint32_t page_bytes(const stage_chunk *p, uint32_t page)
{
	uint32_t rest = p->bytes - page * CHUNK_PAGE;
	return rest < CHUNK_PAGE ? rest : CHUNK_PAGE;
}

static uint32_t pages(const stage_chunk *p)
{
	return (p->bytes + CHUNK_PAGE - 1) / CHUNK_PAGE;
}

uint32_t chunk_pack(unsigned char *message, const stage_chunk *p)
{
	static const unsigned char zeroes[CHUNK_PAGE];
	unsigned char *bytes = chunk_bytes(message, p), *out = bytes;
	for (uint32_t i = 0; i < pages(p); i++) {
		const unsigned char *page = bytes + (size_t)i * CHUNK_PAGE;
		uint32_t n = page_bytes(p, i);
		if (!memcmp(page, zeroes, n))
			continue;
		entry_bit_set(message + MASK, i);
		memmove(out, page, n);
		out += n;
	}
	return (uint32_t)(out - bytes);
}

int64_t chunk_packed(const unsigned char *message, const stage_chunk *p)
{
	int64_t n = 0;
	for (uint32_t i = 0; i < 8 * (CHUNK_HEAD - MASK); i++) {
		if (!entry_bit(message + MASK, i))
			continue;
		if (i >= pages(p))
			return -1;
		n += page_bytes(p, i);
	}
	return n;
}

int chunk_runs(const unsigned char *message, const stage_chunk *p,
               int (*each)(void *ctx, uint32_t at, const unsigned char *data, uint32_t n), void *ctx)
{
	const unsigned char *data = chunk_bytes((unsigned char *)message, p);
	for (uint32_t i = 0, end; i < pages(p); i = end) {
		bool there = entry_bit(message + MASK, i);
		uint32_t n = 0;
		for (end = i; end < pages(p) && entry_bit(message + MASK, end) == there; end++)
			n += page_bytes(p, end);
		int result = each(ctx, i * CHUNK_PAGE, there ? data : NULL, n);
		if (result)
			return result;
		if (there)
			data += n;
	}
	return 0;
}
