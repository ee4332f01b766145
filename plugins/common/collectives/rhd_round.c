/* One round of blocks, in pieces, so that what has come is reduced while the rest is on
 * its way. Blocks that are neighbours in memory travel as one run. */
#include "plugins/common/collectives/rhd.h"

#include "gradcomp/sdk/growbuf.h"

/* Where a run of blocks has got to, in the order of memory from its first block on;
 * both sides go through the same blocks and so cut the same pieces. */
typedef struct cursor {
	const rhd_blocks *c;
	rhd_run run;
	int next, left; /* the block to look at next; blocks that are still to come */
	char *at;
	uint64_t rest; /* bytes left of the neighbouring blocks at hand */
} cursor;

static cursor cursor_at(const rhd_blocks *c, const rhd_run *run)
{
	return (cursor){.c = c, .run = *run, .next = c->position_of ? 0 : run->begin, .left = run->n};
}

static int belongs(const cursor *u, int block, int P)
{
	int further = (u->c->position_of ? u->c->position_of[block] : block) - u->run.begin;
	return (further < 0 ? further + P : further) < u->run.n;
}

/* The next piece, of at most `most` bytes; NULL when there is none. */
static char *cursor_next(cursor *u, int P, size_t most, size_t *len)
{
	const uint64_t *offset = u->c->offset;
	while (!u->rest && u->left) {
		int first = u->next;
		for (; u->left && u->next < P && belongs(u, u->next, P); u->next++)
			u->left--;
		u->at = u->c->buf + offset[first];
		u->rest = offset[u->next] - offset[first];
		if (u->next == first)
			u->next++;
		if (u->next == P)
			u->next = 0;
	}
	if (!u->rest)
		return NULL;
	char *p = u->at;
	*len = u->rest < most ? u->rest : most;
	u->at += *len;
	u->rest -= *len;
	return p;
}

static gradcomp_status post_recv(rhd *r, const rhd_blocks *c, int peer, int in_place, uint64_t i, char *p, size_t len,
                                 gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	gradcomp_request *req = &r->recv[i % RHD_AHEAD];
	if (c->reduce && in_place)
		return l->recv_reduce(l->ctx, peer, p, len / gradcomp_dtype_bytes(c->dtype), c->dtype, c->op, req, err);
	return l->recv(l->ctx, peer, c->reduce ? r->scratch + i % RHD_AHEAD * r->piece : p, len, req, err);
}

static gradcomp_status finish_recv(rhd *r, const rhd_blocks *c, int in_place, uint64_t i, char *p, size_t len,
                                   gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	gradcomp_status st = l->wait(l->ctx, &r->recv[i % RHD_AHEAD], err);
	if (!st && c->reduce && !in_place &&
	    r->host->operators->reduce(NULL, p, r->scratch + i % RHD_AHEAD * r->piece,
	                               len / gradcomp_dtype_bytes(c->dtype), c->dtype, c->op))
		st = r->host->fail(err, GRADCOMP_ERR_UNSUPPORTED,
		                   "rhd: operation %d has no meaning on elements of type %d", (int)c->op,
		                   (int)c->dtype);
	return st;
}

gradcomp_status rhd_round(rhd *r, const rhd_blocks *c, const rhd_run *out, const rhd_run *in, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	cursor going = cursor_at(c, out), coming = cursor_at(c, in), arrived = coming;
	int to = r->order && out->n ? r->order[out->peer] : out->peer;
	int from = r->order && in->n ? r->order[in->peer] : in->peer;
	int in_place = GRADCOMP_HAS(l, recv_reduce) && l->recv_reduce, P = r->nranks, all_sent = 0, all_posted = 0;
	uint64_t sent = 0, posted = 0, waited = 0;
	gradcomp_status st = GRADCOMP_OK;
	size_t len = 0;
	char *p;
	if (c->reduce && !in_place)
		st = sdk_growbuf_reserve(r->host, &r->scratch, &r->scratch_bytes, RHD_AHEAD * r->piece, "rhd", err);
	for (uint64_t i = 0; !st && (!all_sent || !all_posted || i < posted); i++) {
		while (!st && !all_posted && posted < i + RHD_AHEAD) {
			if (!(p = cursor_next(&coming, P, r->piece, &len)))
				all_posted = 1;
			else
				st = post_recv(r, c, from, in_place, posted++, p, len, err);
		}
		while (!st && !all_sent && sent < i + RHD_AHEAD) {
			if (!(p = cursor_next(&going, P, r->piece, &len))) {
				all_sent = 1;
				continue;
			}
			if (sent - waited == RHD_AHEAD)
				st = l->wait(l->ctx, &r->send[waited++ % RHD_AHEAD], err);
			if (!st)
				st = l->send(l->ctx, to, p, len, &r->send[sent++ % RHD_AHEAD], err);
		}
		if (!st && i < posted) {
			p = cursor_next(&arrived, P, r->piece, &len);
			st = finish_recv(r, c, in_place, i, p, len, err);
		}
	}
	while (!st && waited < sent)
		st = l->wait(l->ctx, &r->send[waited++ % RHD_AHEAD], err);
	return st;
}
