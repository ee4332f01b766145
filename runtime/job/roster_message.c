/* What ranks say to each other about who is in the job, as bytes. Read with suspicion: the other end
 * has the secret, but may be broken. */
#include "job/roster_internal.h"

#include "transport/core/wire.h"

#include <stdlib.h>
#include <string.h>

#define HEAD 36 /* type, from, epoch, ballot, three lengths */

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
	const roster_blob *part[] = {&m->view, &m->value, &m->text};
	size_t bytes = HEAD + m->view.bytes + m->value.bytes + m->text.bytes;
	unsigned char *p = malloc(bytes);

	*out = (roster_blob){p, bytes};
	if (!p)
		return -1;
	put32(p, m->type);
	put32(p + 4, m->from);
	put64(p + 8, m->epoch);
	put64(p + 16, m->ballot);
	for (int i = 0; i < 3; i++)
		put32(p + 24 + 4 * i, (uint32_t)part[i]->bytes);
	p += HEAD;
	for (int i = 0; i < 3; i++) {
		if (part[i]->bytes)
			memcpy(p, part[i]->p, part[i]->bytes);
		p += part[i]->bytes;
	}
	return 0;
}

int roster_message_read(const roster_blob *in, roster_message *m)
{
	roster_blob *part[] = {&m->view, &m->value, &m->text};
	size_t at = HEAD;

	memset(m, 0, sizeof *m);
	if (in->bytes < HEAD)
		return -1;
	m->type = get32(in->p);
	m->from = get32(in->p + 4);
	m->epoch = get64(in->p + 8);
	m->ballot = get64(in->p + 16);
	for (int i = 0; i < 3; i++) {
		size_t n = get32(in->p + 24 + 4 * i);

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
	memset(m, 0, sizeof *m);
}

/* epoch, nonce, n; then of each: rank, bytes of its record, the record. */
int roster_view_write(const roster_view *v, roster_blob *out)
{
	size_t bytes = 12 + sizeof v->nonce;
	unsigned char *p;

	for (int i = 0; i < v->n; i++)
		bytes += 8 + strlen(v->records[i]);
	p = malloc(bytes);
	*out = (roster_blob){p, bytes};
	if (!p)
		return -1;
	put64(p, v->epoch);
	memcpy(p + 8, v->nonce, sizeof v->nonce);
	put32(p + 8 + sizeof v->nonce, (uint32_t)v->n);
	p += 12 + sizeof v->nonce;
	for (int i = 0; i < v->n; i++) {
		size_t n = strlen(v->records[i]);

		put32(p, (uint32_t)v->ranks[i]);
		put32(p + 4, (uint32_t)n);
		memcpy(p + 8, v->records[i], n);
		p += 8 + n;
	}
	return 0;
}

int roster_view_read(const roster_blob *in, int n, roster_view *v)
{
	size_t at = 12 + sizeof v->nonce;
	uint32_t count;

	memset(v, 0, sizeof *v);
	if (in->bytes < at)
		return -1;
	v->epoch = get64(in->p);
	memcpy(v->nonce, in->p + 8, sizeof v->nonce);
	count = get32(in->p + 8 + sizeof v->nonce);
	if (!v->epoch || !count || count > (uint32_t)n)
		return -1;
	v->ranks = calloc(count, sizeof *v->ranks);
	v->records = calloc(count, sizeof *v->records);
	v->n = v->ranks && v->records ? (int)count : 0;
	for (int i = 0; i < v->n; i++) {
		uint32_t rank, bytes;

		if (in->bytes - at < 8)
			goto bad;
		rank = get32(in->p + at);
		bytes = get32(in->p + at + 4);
		at += 8;
		if (rank >= (uint32_t)n || (i && (int)rank <= v->ranks[i - 1]) || bytes > in->bytes - at ||
		    bytes >= TRANSPORT_ENDPOINT_MAX)
			goto bad;
		v->ranks[i] = (int)rank;
		v->records[i] = memchr(in->p + at, 0, bytes) ? NULL : calloc(1, bytes + 1);
		if (!v->records[i])
			goto bad;
		memcpy(v->records[i], in->p + at, bytes);
		at += bytes;
	}
	if (v->n && at == in->bytes)
		return 0;
bad:
	roster_view_clear(v);
	return -1;
}

void roster_view_clear(roster_view *v)
{
	for (int i = 0; v->records && i < v->n; i++)
		free(v->records[i]);
	free(v->records);
	free(v->ranks);
	memset(v, 0, sizeof *v);
}

bool roster_view_has(const roster_view *v, int rank)
{
	for (int i = 0; i < v->n; i++)
		if (v->ranks[i] == rank)
			return true;
	return false;
}
