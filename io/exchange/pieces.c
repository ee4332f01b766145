/* Cutting a dataset into pieces, and what a piece looks like on its way. */
#include <string.h>

#include "pieces.h"
#include "wire.h"

#define MAGIC 0x63706367u /* "gcpc" */
#define MASK 16           /* where the pages of a head begin */

size_t piece_file(const stage_manifest *m, const unsigned char *needed, size_t i)
{
	while (i < m->n && !(m->entries[i].type == STAGE_FILE && piece_bit(needed, i)))
		i++;
	return i;
}

static void take_block(piece_cursor *c, stage_piece *p)
{
	const stage_entry *e = &c->m->entries[c->entry];
	uint64_t rest = e->size - c->at;
	*p = (stage_piece){.first = c->entry, .parts = 1, .at = c->at, .large = true, .holes = e->stored < e->size};
	p->bytes = rest < STAGE_BLOCK ? (uint32_t)rest : STAGE_BLOCK;
	c->at += p->bytes;
	if (c->at < e->size)
		return;
	c->at = 0;
	c->entry++;
}

bool piece_next(piece_cursor *c, stage_piece *p)
{
	const stage_entry *e = c->m->entries;
	c->entry = piece_file(c->m, c->needed, c->entry);
	if (c->entry == c->m->n)
		return false;
	if (e[c->entry].size > STAGE_BLOCK) {
		take_block(c, p);
	} else {
		*p = (stage_piece){.first = c->entry};
		while (c->entry < c->m->n && p->parts < PIECE_FILES && p->bytes + e[c->entry].size <= STAGE_BLOCK) {
			p->bytes += (uint32_t)e[c->entry].size;
			p->parts++;
			c->entry = piece_file(c->m, c->needed, c->entry + 1);
		}
	}
	p->number = c->number++;
	return true;
}

void piece_head(unsigned char *message, const stage_piece *p, uint32_t flags)
{
	put32(message, MAGIC);
	put32(message + 4, flags);
	put64(message + 8, p->number);
	memset(message + MASK, 0, PIECE_HEAD - MASK);
}

bool piece_head_check(const unsigned char *message, const stage_piece *p, uint32_t *flags)
{
	*flags = get32(message + 4);
	return get32(message) == MAGIC && !(*flags & ~PIECE_STOP) && get64(message + 8) == p->number;
}

static uint32_t page_bytes(const stage_piece *p, uint32_t page)
{
	uint32_t rest = p->bytes - page * PIECE_PAGE;
	return rest < PIECE_PAGE ? rest : PIECE_PAGE;
}

static uint32_t pages(const stage_piece *p)
{
	return (p->bytes + PIECE_PAGE - 1) / PIECE_PAGE;
}

uint32_t piece_pack(unsigned char *message, const stage_piece *p)
{
	static const unsigned char zeroes[PIECE_PAGE];
	unsigned char *bytes = piece_bytes(message, p), *out = bytes;
	for (uint32_t i = 0; i < pages(p); i++) {
		const unsigned char *page = bytes + (size_t)i * PIECE_PAGE;
		uint32_t n = page_bytes(p, i);
		if (!memcmp(page, zeroes, n))
			continue;
		piece_set(message + MASK, i);
		memmove(out, page, n);
		out += n;
	}
	return (uint32_t)(out - bytes);
}

int64_t piece_packed(const unsigned char *message, const stage_piece *p)
{
	int64_t n = 0;
	for (uint32_t i = 0; i < 8 * (PIECE_HEAD - MASK); i++) {
		if (!piece_bit(message + MASK, i))
			continue;
		if (i >= pages(p))
			return -1;
		n += page_bytes(p, i);
	}
	return n;
}

int piece_runs(const unsigned char *message, const stage_piece *p,
               int (*each)(void *ctx, uint32_t at, const unsigned char *data, uint32_t n), void *ctx)
{
	const unsigned char *data = piece_bytes((unsigned char *)message, p);
	for (uint32_t i = 0, end; i < pages(p); i = end) {
		bool there = piece_bit(message + MASK, i);
		uint32_t n = 0;
		for (end = i; end < pages(p) && piece_bit(message + MASK, end) == there; end++)
			n += page_bytes(p, end);
		int result = each(ctx, i * PIECE_PAGE, there ? data : NULL, n);
		if (result)
			return result;
		if (there)
			data += n;
	}
	return 0;
}
