/* GATHERED rounds: everybody gets everybody's payload. A word in front of each, or
 * its length on its own, also says the step and whether the rank's gradient is not finite. */
#include "step/exchange/exchange.h"
#include "step/memops.h"

#include "base/error.h"

/* Lengths first, unless they are fixed; then the payloads. */
gradcomp_status exchange_allgather(engine *eng, bucket *b, uint32_t round, gradcomp_error *err)
{
	const gradcomp_round *rd = &b->plan.rounds[round];
	int P = eng->layout.nranks, me = eng->layout.rank, fixed = !!(rd->flags & GRADCOMP_ROUND_FIXED);
	uint64_t *bytes = eng->room.lengths, *heads = bytes + P;
	size_t stride = payload_fixed_stride(eng, rd->bound), at = 0;
	gradcomp_status st = GRADCOMP_OK;
	char *buf;
	uint64_t head = exchange_head(eng, b, b->own.bytes);
	if (fixed) {
		for (int p = 0; p < P; p++)
			bytes[p] = stride;
		/* Bytes that the plugin does not write are sent as zero, padding as well. */
		size_t from = PAYLOAD_HEAD + (b->local_bad ? 0 : rd->bound);
		buf = (char *)b->workspace->gathered.p;
		st = memops_put(eng, buf + (size_t)me * stride, &head, PAYLOAD_HEAD, err);
		if (!st && from < stride)
			st = memops_zero(eng, buf + (size_t)me * stride + from, stride - from, err);
		if (!st)
			st = exchange_blocks(eng, buf, bytes, err);
		if (!st)
			st = memops_get_all(eng, heads, buf, stride, PAYLOAD_HEAD, (size_t)P, err);
	} else {
		for (int p = 0; p < P; p++)
			bytes[p] = PAYLOAD_HEAD;
		heads[me] = head;
		st = exchange_blocks(eng, heads, bytes, err);
	}
	for (int p = 0; !st && p < P; p++) {
		uint64_t len = head_bytes(heads[p]);
		b->bad |= !!(heads[p] & HEAD_BAD);
		st = exchange_check_step(eng, b, heads[p], p, err);
		if (!st && (len > rd->bound || (fixed && !(heads[p] & HEAD_BAD) && len != rd->bound)))
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "rank %d sent a payload of %llu bytes for bucket %u, this rank expects "
			               "%s%llu",
			               eng->group->ranks[p], (unsigned long long)len, b->pub.index,
			               fixed ? "" : "at most ", (unsigned long long)rd->bound);
		bytes[p] = fixed ? stride : payload_stride(eng, len);
		b->parts[p] = (gradcomp_payload){NULL, len, len};
	}
	if (st || b->bad)
		return st;
	st = fixed ? GRADCOMP_OK : workspace_grow(&b->workspace->gathered, stride * (size_t)P, err);
	buf = b->workspace->gathered.p;
	for (int p = 0; !st && p < P; at += bytes[p++])
		b->parts[p].data = buf + at + (fixed ? PAYLOAD_HEAD : 0);
	if (!st && !fixed) {
		st = memops_move(eng, b->parts[me].data, b->own.data, b->own.bytes, err);
		if (!st)
			st = memops_zero(eng, (char *)b->parts[me].data + b->own.bytes, bytes[me] - b->own.bytes, err);
		if (!st)
			st = exchange_blocks(eng, buf, bytes, err);
	}
	return st;
}
