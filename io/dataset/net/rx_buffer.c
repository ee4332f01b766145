/* The rank's receive buffer, for values of other nodes while they are wanted. One block a reply,
 * first fit. The processes of the rank count references to a block, which is free again when
 * the last of its values has been released. */
#include <string.h>

#include "io/dataset/net/service.h"

static uint64_t rx_buffer_begin(const service *s)
{
	return s->ds->head->rx_buffer + (uint64_t)s->ds->place * s->ds->head->rx_buffer_bytes;
}

/* Frees blocks without references. */
static void rx_buffer_collect(service *s)
{
	uint32_t kept = 0;
	for (uint32_t i = 0; i < s->nsorted; i++)
		if (atomic_load(&s->ds->fetch->refs[s->sorted[i]]) > 0)
			s->sorted[kept++] = s->sorted[i];
		else
			s->blocks[s->sorted[i]].bytes = 0;
	s->nsorted = kept;
}

/* Where the gap before the i-th block in use begins, and how long it is. */
static uint64_t gap(const service *s, uint32_t i, uint64_t *bytes)
{
	const block *before = i ? &s->blocks[s->sorted[i - 1]] : NULL;
	uint64_t begin = before ? before->offset + before->bytes : rx_buffer_begin(s);
	uint64_t end =
		i < s->nsorted ? s->blocks[s->sorted[i]].offset : rx_buffer_begin(s) + s->ds->head->rx_buffer_bytes;
	*bytes = end - begin;
	return begin;
}

uint64_t rx_buffer_longest(service *s)
{
	uint64_t most = 0, bytes;
	rx_buffer_collect(s);
	for (uint32_t i = 0; i <= s->nsorted; i++) {
		gap(s, i, &bytes);
		most = bytes > most ? bytes : most;
	}
	return s->nsorted < BLOCKS ? most : 0;
}

int rx_buffer_alloc(service *s, uint64_t bytes)
{
	uint64_t room, need = value_rounded(bytes);
	uint32_t b;
	rx_buffer_collect(s);
	if (s->nsorted == BLOCKS)
		return -1;
	for (uint32_t i = 0; i <= s->nsorted; i++) {
		uint64_t at = gap(s, i, &room);

		if (room < need)
			continue;
		do
			b = s->next_block++ % BLOCKS;
		while (s->blocks[b].bytes);
		s->blocks[b] = (block){.offset = at, .bytes = need};
		memmove(s->sorted + i + 1, s->sorted + i, (s->nsorted - i) * sizeof *s->sorted);
		s->sorted[i] = b;
		s->nsorted++;
		atomic_store(&s->ds->fetch->refs[b], 1);
		return (int)b;
	}
	return -1;
}

void rx_buffer_trim(service *s, int b, uint64_t bytes)
{
	uint64_t need = value_rounded(bytes);
	if (need < s->blocks[b].bytes)
		s->blocks[b].bytes = need;
}

void rx_buffer_unref(service *s, uint32_t b)
{
	atomic_fetch_sub(&s->ds->fetch->refs[b], 1);
}
