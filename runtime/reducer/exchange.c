/* The EXCHANGE task: carries a round's payloads as its pattern says.
 *
 * Round 0 also carries the news that a rank's gradient is not finite: one more
 * element in a summed payload, a word in front of a gathered one. When it comes,
 * all ranks know it at the same place in the order of collectives, tell each
 * other the tensor, and give up the bucket's remaining rounds. */
#include "reducer.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

#define HEAD sizeof(uint64_t)
#define HEAD_BAD ((uint64_t)1 << 63)

gradcomp_status area_grow(struct area *a, size_t bytes, gradcomp_error *err)
{
	void *p;
	if (bytes <= a->bytes)
		return GRADCOMP_OK;
	bytes = (bytes + 4095) & ~(size_t)4095;
	p = aligned_alloc(64, bytes);
	if (!p)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a workspace of %zu bytes", bytes);
	free(a->p);
	a->p = p;
	a->bytes = bytes;
	return GRADCOMP_OK;
}

static int is_zero(const unsigned char *p, size_t n)
{
	while (n && !*p)
		p++, n--;
	return !n;
}

/* 1.0 in any summed type. */
static void put_one(void *p, gradcomp_dtype dtype)
{
	static const uint16_t half = 0x3c00, bhalf = 0x3f80;
	float f = 1;
	double d = 1;
	int64_t i = 1;
	switch (dtype) {
	case GRADCOMP_F32:
		memcpy(p, &f, 4);
		return;
	case GRADCOMP_F64:
		memcpy(p, &d, 8);
		return;
	case GRADCOMP_F16:
		memcpy(p, &half, 2);
		return;
	case GRADCOMP_BF16:
		memcpy(p, &bhalf, 2);
		return;
	default:
		memcpy(p, &i, gradcomp_dtype_bytes(dtype)); /* little-endian hosts only, as the wire */
	}
}

static gradcomp_status summed(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	const gradcomp_operators *ops = r->job->host.operators;
	double scale = rd->flags & GRADCOMP_ROUND_MEAN ? 1.0 / r->layout.nranks : 1.0;
	int passes = !!(r->compressor->traits & GRADCOMP_TRAIT_PASSES_NONFINITE);
	size_t size = gradcomp_dtype_bytes(rd->dtype);
	gradcomp_status st;
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE) {
		st = r->port.collective->allreduce(r->port.instance, b->work.flat, rd->count, GRADCOMP_F32, GRADCOMP_SUM,
		                                   scale, err);
		if (!st && !passes)
			ops->nonfinite(NULL, b->work.flat, b->pub.numel, &b->bad);
		b->own = (gradcomp_payload){b->work.flat, rd->count * 4, rd->count * 4};
		return st;
	}
	unsigned char *flag = (unsigned char *)b->own.data + rd->count * size;
	int flagged = round == 0 && !passes;
	if (flagged) {
		memset(flag, 0, size);
		if (b->local_bad) {
			memset(b->own.data, 0, rd->count * size);
			put_one(flag, rd->dtype);
		}
	}
	st = r->port.collective->allreduce(r->port.instance, b->own.data, rd->count + (uint64_t)flagged, rd->dtype,
	                                   GRADCOMP_SUM, scale, err);
	if (!st && flagged)
		b->bad = !is_zero(flag, size);
	return st;
}

static gradcomp_status gather_blocks(gradcomp_reducer *r, const uint64_t *bytes, gradcomp_error *err, void *buf)
{
	return r->port.collective->allgather(r->port.instance, buf, bytes, err);
}

/* Lengths first, unless they are fixed; then the payloads. */
static gradcomp_status gathered(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	int P = r->layout.nranks, me = r->layout.rank, fixed = !!(rd->flags & GRADCOMP_ROUND_FIXED);
	uint64_t *bytes = r->lengths, *heads = bytes + P;
	size_t stride = HEAD + ((rd->bound + 7) & ~(uint64_t)7), at = 0;
	gradcomp_status st = GRADCOMP_OK;
	char *buf;
	uint64_t head = b->own.bytes | (b->local_bad ? HEAD_BAD : 0);
	if (fixed) {
		for (int p = 0; p < P; p++)
			bytes[p] = stride;
		buf = (char *)b->slot->gathered.p;
		memcpy(buf + (size_t)me * stride, &head, HEAD);
		if (b->local_bad)
			memset(buf + (size_t)me * stride + HEAD, 0, stride - HEAD);
		st = gather_blocks(r, bytes, err, buf);
		for (int p = 0; !st && p < P; p++)
			memcpy(&heads[p], buf + (size_t)p * stride, HEAD);
	} else {
		for (int p = 0; p < P; p++)
			bytes[p] = HEAD;
		heads[me] = head;
		st = gather_blocks(r, bytes, err, heads);
	}
	for (int p = 0; !st && p < P; p++) {
		uint64_t len = heads[p] & ~HEAD_BAD;
		b->bad |= !!(heads[p] & HEAD_BAD);
		if (len > rd->bound || (fixed && !(heads[p] & HEAD_BAD) && len != rd->bound))
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d sent a payload of %llu bytes for bucket %u, this rank expects %s%llu",
			               r->group->ranks[p], (unsigned long long)len, b->pub.index, fixed ? "" : "at most ",
			               (unsigned long long)rd->bound);
		bytes[p] = fixed ? stride : (len + 7) & ~(uint64_t)7;
		b->parts[p] = (gradcomp_payload){NULL, len, len};
	}
	if (st || b->bad)
		return st;
	st = fixed ? GRADCOMP_OK : area_grow(&b->slot->gathered, stride * (size_t)P, err);
	buf = b->slot->gathered.p;
	for (int p = 0; !st && p < P; at += bytes[p++])
		b->parts[p].data = buf + at + (fixed ? HEAD : 0);
	if (!st && !fixed) {
		memcpy(b->parts[me].data, b->own.data, b->own.bytes);
		memset((char *)b->parts[me].data + b->own.bytes, 0, bytes[me] - b->own.bytes);
		st = gather_blocks(r, bytes, err, buf);
	}
	return st;
}

/* Which rank's, and which tensor: an all-gather that only a bad step pays. */
static gradcomp_status name_bad(gradcomp_reducer *r, bucket *b, gradcomp_error *err)
{
	int P = r->layout.nranks;
	uint64_t *bytes = r->lengths, *mark = bytes + P;
	gradcomp_status st;
	for (int p = 0; p < P; p++)
		bytes[p] = sizeof *mark;
	mark[r->layout.rank] = (uint64_t)b->local_bad;
	st = gather_blocks(r, bytes, err, mark);
	for (int p = 0; !st && p < P && r->warned < 5; p++) {
		if (!mark[p] || mark[p] > b->pub.ntensors)
			continue;
		r->warned++;
		log_line(&r->job->log, GRADCOMP_LOG_INFO,
		         "step %llu: the gradient of '%s' on rank %d is not finite; this bucket's result is NaN on all ranks and "
		         "the error memory stays as it was%s",
		         (unsigned long long)r->step, r->tensors[b->pub.first + mark[p] - 1].name, r->group->ranks[p],
		         r->warned == 5 ? " (not told again)" : "");
	}
	return st;
}

gradcomp_status exchange_run(gradcomp_reducer *r, bucket *b, uint32_t round, gradcomp_error *err)
{
	gradcomp_status st = b->plan.rounds[round].pattern == GRADCOMP_SUMMED ? summed(r, b, round, err)
	                                                                      : gathered(r, b, round, err);
	return !st && b->bad ? name_bad(r, b, err) : st;
}
