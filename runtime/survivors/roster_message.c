/* Writes as bytes, and reads, what ranks say to each other about who is in the job. Reads with suspicion: the other
 * end has the secret, but may be broken. */
#include "survivors/roster_internal.h"

#include "transport/wire/wire.h"

#include <stdlib.h>
#include <string.h>

#define HEAD 56 /* type, from, budget, epoch, ballot, promised, five lengths */
#define PARTS 5
#define VIEW_HEAD (12 + TRANSPORT_SECRET_BYTES)

int roster_blob_copy(roster_blob *out, const void *p, size_t bytes)
{
	*out = (roster_blob){malloc(bytes + 1), bytes};
	if (!out->p)
		return -1;
	if (bytes)
		memcpy(out->p, p, bytes);
	out->p[bytes] = '\0'; /* texts are read as such */
	return 0;
}

int roster_message_write(const roster_message *m, roster_blob *out)
{
	const roster_blob *part[PARTS] = {&m->view, &m->value, &m->text, &m->set, &m->late};
	size_t bytes = HEAD;
	unsigned char *p;
	for (int i = 0; i < PARTS; i++)
		bytes += part[i]->bytes;
	p = malloc(bytes);
	*out = (roster_blob){p, bytes};
	if (!p)
		return -1;
	put32(p, m->type);
	put32(p + 4, m->from);
	put32(p + 8, m->budget);
	put64(p + 12, m->epoch);
	put64(p + 20, m->ballot);
	put64(p + 28, m->promised);
	for (int i = 0; i < PARTS; i++)
		put32(p + 36 + 4 * i, (uint32_t)part[i]->bytes);
	p += HEAD;
	for (int i = 0; i < PARTS; i++) {
		if (part[i]->bytes)
			memcpy(p, part[i]->p, part[i]->bytes);
		p += part[i]->bytes;
	}
	return 0;
}

int roster_message_read(const roster_blob *in, roster_message *m)
{
	roster_blob *part[PARTS] = {&m->view, &m->value, &m->text, &m->set, &m->late};
	size_t at = HEAD;
	memset(m, 0, sizeof *m);
	if (in->bytes < HEAD)
		return -1;
	m->type = get32(in->p);
	m->from = get32(in->p + 4);
	m->budget = get32(in->p + 8);
	m->epoch = get64(in->p + 12);
	m->ballot = get64(in->p + 20);
	m->promised = get64(in->p + 28);
	for (int i = 0; i < PARTS; i++) {
		size_t n = get32(in->p + 36 + 4 * i);

		if (n > in->bytes - at || (n && roster_blob_copy(part[i], in->p + at, n))) {
			roster_message_clear(m);
			return -1;
		}
		at += n;
	}
	return 0;
}

void roster_message_clear(roster_message *m)
{
	free(m->view.p);
	free(m->value.p);
	free(m->text.p);
	free(m->set.p);
	free(m->late.p);
	memset(m, 0, sizeof *m);
}

int roster_bit_set(roster_blob *b, int n, int i)
{
	if (!b->p) {
		size_t bytes = ((size_t)n + 7) / 8;

		b->p = calloc(1, bytes + 1);
		if (!b->p)
			return -1;
		b->bytes = bytes;
	}
	b->p[i / 8] |= (unsigned char)(1u << i % 8);
	return 0;
}

bool roster_bit(const roster_blob *b, int i)
{
	return (size_t)i / 8 < b->bytes && b->p[i / 8] >> i % 8 & 1;
}

static int add_bits(roster_blob *to, const roster_blob *from, const roster_blob *asked)
{
	if (!from->bytes || from->bytes != asked->bytes)
		return 0;
	if (!to->p && !(to->p = calloc(1, from->bytes + 1)))
		return -1;
	to->bytes = from->bytes;
	for (size_t i = 0; i < from->bytes; i++)
		to->p[i] |= from->p[i] & asked->p[i];
	return 0;
}

/* Takes over the blob that is of the higher number. */
static int add_higher(uint64_t *number, roster_blob *to, uint64_t other, const roster_blob *from)
{
	roster_blob copy;
	if (!from->bytes || other <= *number)
		return 0;
	if (roster_blob_copy(&copy, from->p, from->bytes))
		return -1;
	free(to->p);
	*to = copy;
	*number = other;
	return 0;
}

int roster_tally_add(roster_message *to, const roster_message *from, const roster_blob *asked)
{
	uint64_t epoch = to->view.bytes >= 8 ? get64(to->view.p) : to->epoch;
	if (from->promised > to->promised)
		to->promised = from->promised;
	if (add_higher(&epoch, &to->view, from->view.bytes >= 8 ? get64(from->view.p) : 0, &from->view) ||
	    add_higher(&to->ballot, &to->value, from->ballot, &from->value))
		return -1;
	return add_bits(&to->set, &from->set, asked) || add_bits(&to->late, &from->late, asked) ? -1 : 0;
}

/* Writes epoch, nonce, number of ranks that the job began with; a bit for each. */
int roster_view_write(const roster_view *v, int n, roster_blob *out)
{
	roster_blob bits = {0};
	*out = (roster_blob){0};
	for (int i = 0; i < v->n; i++)
		if (roster_bit_set(&bits, n, v->ranks[i]))
			return -1;
	out->bytes = VIEW_HEAD + bits.bytes;
	out->p = malloc(out->bytes + 1);
	if (out->p) {
		put64(out->p, v->epoch);
		memcpy(out->p + 8, v->nonce, sizeof v->nonce);
		put32(out->p + 8 + sizeof v->nonce, (uint32_t)n);
		if (bits.bytes) /* a view has a rank, but that is the caller's */
			memcpy(out->p + VIEW_HEAD, bits.p, bits.bytes);
	}
	free(bits.p);
	return out->p ? 0 : -1;
}

int roster_view_read(const roster_blob *in, int n, roster_view *v)
{
	roster_blob bits;
	memset(v, 0, sizeof *v);
	if (in->bytes != VIEW_HEAD + ((size_t)n + 7) / 8)
		return -1;
	v->epoch = get64(in->p);
	memcpy(v->nonce, in->p + 8, sizeof v->nonce);
	bits = (roster_blob){in->p + VIEW_HEAD, in->bytes - VIEW_HEAD};
	if (!v->epoch || get32(in->p + 8 + sizeof v->nonce) != (uint32_t)n)
		return -1;
	for (size_t i = (size_t)n; i < 8 * bits.bytes; i++)
		if (roster_bit(&bits, (int)i))
			return -1;
	v->ranks = calloc((size_t)n, sizeof *v->ranks);
	for (int r = 0; v->ranks && r < n; r++)
		if (roster_bit(&bits, r))
			v->ranks[v->n++] = r;
	if (v->n)
		return 0;
	roster_view_clear(v);
	return -1;
}

void roster_view_clear(roster_view *v)
{
	free(v->ranks);
	memset(v, 0, sizeof *v);
}

int roster_view_find(const roster_view *v, int rank)
{
	int low = 0, high = v->n;
	while (low < high) {
		int middle = (low + high) / 2;

		if (v->ranks[middle] < rank)
			low = middle + 1;
		else
			high = middle;
	}
	return low < v->n && v->ranks[low] == rank ? low : -1;
}
