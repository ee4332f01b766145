/* Recursive doubling, for what is bound by latency: in the trip of bit d the ranks at
 * places v and v ^ d give each other their sums, log2 P trips. Places from the largest
 * power of two on are folded onto those at the beginning first, and get the result at
 * the end (Rabenseifner 2004).
 *
 * Both partners add the sum of the lower place to that of the higher one in this order:
 * zeroes of either sign and NaN come out alike too. */
#include "rhd.h"

#include "room.h"

#include <string.h>

static int rank_at(const rhd *r, int place)
{
	return r->order ? r->order[place] : place;
}

static gradcomp_status swap_sums(rhd *r, int peer, const char *mine, char *theirs, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	gradcomp_status st = l->recv(l->ctx, peer, theirs, bytes, &r->recv[0], err);
	if (!st)
		st = l->send(l->ctx, peer, mine, bytes, &r->send[0], err);
	if (!st)
		st = l->wait(l->ctx, &r->recv[0], err);
	return st ? st : l->wait(l->ctx, &r->send[0], err);
}

static gradcomp_status one_way(rhd *r, int peer, int sending, void *buf, size_t bytes, gradcomp_error *err)
{
	const gradcomp_links *l = r->links;
	gradcomp_status st = sending ? l->send(l->ctx, peer, buf, bytes, &r->send[0], err)
	                             : l->recv(l->ctx, peer, buf, bytes, &r->recv[0], err);
	return st ? st : l->wait(l->ctx, sending ? &r->send[0] : &r->recv[0], err);
}

gradcomp_status rhd_doubled(rhd *r, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                            gradcomp_error *err)
{
	const gradcomp_operators *ops = r->host->operators;
	int place = r->place, P = r->nranks, folded = place + r->shape.full < P ? rank_at(r, place + r->shape.full) : -1;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	gradcomp_status st, bad = GRADCOMP_OK;
	if (place >= r->shape.full) {
		int peer = rank_at(r, place - r->shape.full);
		st = one_way(r, peer, 1, buf, bytes, err);
		return st ? st : one_way(r, peer, 0, buf, bytes, err);
	}
	st = room_grow(r->host, &r->room, &r->room_bytes, bytes, "rhd", err);
	char *have = buf, *other = r->room;
	if (!st && folded >= 0) {
		st = one_way(r, folded, 0, other, bytes, err);
		if (!st)
			bad = ops->reduce(NULL, have, other, count, dtype, op);
	}
	for (int d = 1; !st && !bad && d < r->shape.full; d *= 2) {
		st = swap_sums(r, rank_at(r, place ^ d), have, other, bytes, err);
		if (st)
			break;
		if (place & d) {
			char *mine = have;
			have = other;
			other = mine;
		}
		bad = ops->reduce(NULL, have, other, count, dtype, op);
	}
	if (!st && !bad && scale != 1.0)
		bad = ops->scale_as(NULL, have, scale, count, dtype);
	if (bad)
		return r->host->fail(err, bad, "rhd: reduction of element type %d with operation %d failed", (int)dtype,
		                     (int)op);
	if (!st && have != buf)
		memcpy(buf, have, bytes);
	return st || folded < 0 ? st : one_way(r, folded, 1, buf, bytes, err);
}
