#include "plugins/common/collectives/coding.h"

#include <string.h>

static uint64_t length_of(const char *slot)
{
	uint64_t bytes;
	memcpy(&bytes, slot, CODING_HEAD);
	return bytes;
}

uint64_t coding_stride(const coding *c, const uint64_t *offset, int nblocks, uint64_t piece)
{
	uint64_t most = coding_bound(c, piece);
	for (int b = 0; b < nblocks; b++) {
		uint64_t rest = (offset[b + 1] - offset[b]) % piece, bound = rest ? coding_bound(c, rest) : 0;
		most = bound > most ? bound : most;
	}
	return (CODING_HEAD + most + 63) & ~(uint64_t)63;
}

gradcomp_status coding_make(const coding *c, const float *x, uint64_t n, uint64_t counter, char *slot,
                            gradcomp_error *err)
{
	uint64_t bound = coding_bound(c, n), bytes = 0;
	gradcomp_status st = c->codec->code(c->codec->ctx, x, n, counter, slot + CODING_HEAD, &bytes, err);
	if (!st && bytes > bound)
		st = c->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                   "%s: a code of %llu bytes for %llu numbers, at most %llu were promised", c->who,
		                   (unsigned long long)bytes, (unsigned long long)n, (unsigned long long)bound);
	memcpy(slot, &bytes, CODING_HEAD);
	if (!st && bound <= CODING_SHORT)
		memset(slot + CODING_HEAD + bytes, 0, bound - bytes);
	return st;
}

gradcomp_status coding_loss(const coding *c, const float *x, uint64_t n, const char *slot, float *e,
                            gradcomp_error *err)
{
	const gradcomp_operators *ops = c->host->operators;
	gradcomp_status st = e ? coding_take(c, slot, e, n, err) : GRADCOMP_OK;
	if (st || !e)
		return st;
	ops->scale(NULL, e, -1, n);
	ops->add(NULL, e, x, n);
	return GRADCOMP_OK;
}

gradcomp_status coding_settle(const coding *c, float *x, uint64_t n, double scale, const char *slot, float *e,
                              gradcomp_error *err)
{
	const gradcomp_operators *ops = c->host->operators;
	if (e)
		ops->copy(NULL, e, x, n * sizeof *e);
	gradcomp_status st = coding_take(c, slot, x, n, err);
	if (st || !e)
		return st;
	ops->axpy(NULL, e, -1, x, n);
	return scale == 1.0 ? GRADCOMP_OK : ops->scale_as(NULL, e, 1 / scale, n, GRADCOMP_F32);
}

gradcomp_status coding_send(const coding *c, int peer, const char *slot, uint64_t n, gradcomp_request *req,
                            gradcomp_error *err)
{
	const gradcomp_links *l = c->links;
	gradcomp_status st;
	if (!coding_long(c, n))
		return l->send(l->ctx, peer, slot, CODING_HEAD + coding_bound(c, n), req, err);
	st = l->send(l->ctx, peer, slot, CODING_HEAD, req, err);
	return st ? st : l->send(l->ctx, peer, slot + CODING_HEAD, length_of(slot), req + 1, err);
}

gradcomp_status coding_sent(const coding *c, uint64_t n, gradcomp_request *req, gradcomp_error *err)
{
	const gradcomp_links *l = c->links;
	gradcomp_status st = l->wait(l->ctx, req, err);
	return st || !coding_long(c, n) ? st : l->wait(l->ctx, req + 1, err);
}

gradcomp_status coding_recv(const coding *c, int peer, char *slot, uint64_t n, gradcomp_request *req,
                            gradcomp_error *err)
{
	const gradcomp_links *l = c->links;
	uint64_t bytes = coding_long(c, n) ? CODING_HEAD : CODING_HEAD + coding_bound(c, n);
	return l->recv(l->ctx, peer, slot, bytes, req, err);
}

gradcomp_status coding_arrive(const coding *c, int peer, char *slot, uint64_t n, gradcomp_request *req,
                              gradcomp_error *err)
{
	const gradcomp_links *l = c->links;
	uint64_t bound = coding_bound(c, n), bytes;
	gradcomp_status st = l->wait(l->ctx, req, err);
	if (st)
		return st;
	bytes = length_of(slot);
	if (bytes > bound)
		return c->host
		        ->fail(err, GRADCOMP_ERR_MISMATCH,
		               "%s: rank %d of the group announces a code of %llu bytes for %llu numbers, at most %llu "
		               "are possible",
		               c->who, peer, (unsigned long long)bytes, (unsigned long long)n,
		               (unsigned long long)bound);
	if (bound <= CODING_SHORT)
		return GRADCOMP_OK;
	st = l->recv(l->ctx, peer, slot + CODING_HEAD, bytes, req, err);
	return st ? st : l->wait(l->ctx, req, err);
}

gradcomp_status coding_add(const coding *c, const char *slot, float *x, uint64_t n, gradcomp_error *err)
{
	return c->codec->decode_add(c->codec->ctx, slot + CODING_HEAD, length_of(slot), x, n, err);
}

gradcomp_status coding_take(const coding *c, const char *slot, float *x, uint64_t n, gradcomp_error *err)
{
	return c->codec->decode(c->codec->ctx, slot + CODING_HEAD, length_of(slot), x, n, err);
}
