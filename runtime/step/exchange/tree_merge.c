/* MERGED rounds: two payloads make one, along a tree of the collective's. A word
 * in front of each says the step, and whether a gradient behind it is not finite: that
 * spreads through merges exactly, whatever the compressor does with numbers. */
#include "step/exchange/exchange.h"

#include "base/error.h"

#include <string.h>

typedef struct tree_merge {
	engine *eng;
	bucket *b;
	uint32_t round;
	uint64_t bytes; /* a payload's with its head */
	exchange_merge *merge;
} tree_merge;

static gradcomp_status read_head(const tree_merge *m, const gradcomp_payload *p, uint64_t *head, gradcomp_error *err)
{
	if (p->bytes != m->bytes)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "a payload of %llu bytes came to be merged for bucket %u, %llu are right",
		                 (unsigned long long)p->bytes, m->b->pub.index, (unsigned long long)m->bytes);
	memcpy(head, p->data, sizeof *head);
	if (head_bytes(*head) || *head & ~(HEAD_BAD | (HEAD_BAD - 1)))
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "what came to be merged for bucket %u begins with %#llx and is no payload",
		                 m->b->pub.index, (unsigned long long)*head);
	return exchange_check_step(m->eng, m->b, *head, -1, err);
}

/* Returns a payload without its head. */
static gradcomp_payload bare(const gradcomp_payload *p, uint64_t bytes)
{
	return (gradcomp_payload){(char *)p->data + PAYLOAD_HEAD, bytes, bytes};
}

static gradcomp_status merge_two(void *ctx, const gradcomp_payload *a, const gradcomp_payload *b, gradcomp_payload *out,
                                 gradcomp_error *err)
{
	const tree_merge *m = ctx;
	const struct gradcomp_compressor_v1 *c = m->eng->compressor;
	uint64_t bound = m->b->plan.rounds[m->round].bound, head[2];
	gradcomp_status st = read_head(m, a, &head[0], err);
	if (!st)
		st = read_head(m, b, &head[1], err);
	if (!st && out->capacity < m->bytes)
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "collective '%s' merges into %llu bytes, a payload has %llu",
		               m->eng->coll_ctx.collective->info.name, (unsigned long long)out->capacity,
		               (unsigned long long)m->bytes);
	if (st)
		return st;
	memset((char *)out->data + m->bytes - PAYLOAD_HEAD, 0, PAYLOAD_HEAD);
	head[0] |= head[1];
	memcpy(out->data, head, PAYLOAD_HEAD);
	out->bytes = m->bytes;
	if (head[0] & HEAD_BAD) {
		memset((char *)out->data + PAYLOAD_HEAD, 0, m->bytes - PAYLOAD_HEAD);
		return GRADCOMP_OK;
	}
	gradcomp_payload x = bare(a, bound), y = bare(b, bound), sum = bare(out, bound);
	st = m->merge(m->eng, &m->b->work, m->round, &x, &y, &sum, err);
	if (!st && sum.bytes != bound)
		st = error_set(err, GRADCOMP_ERR_INTERNAL, "compressor '%s' merged to %llu bytes where it planned %llu",
		               c->info.name, (unsigned long long)sum.bytes, (unsigned long long)bound);
	return st;
}

gradcomp_status exchange_tree_merge(engine *eng, bucket *b, uint32_t round, exchange_merge *merge, gradcomp_error *err)
{
	uint64_t bound = b->plan.rounds[round].bound, head = exchange_head(eng, b, 0);
	tree_merge m = {.eng = eng, .b = b, .round = round, .bytes = merged_bytes(bound), .merge = merge};
	gradcomp_merger merger = {.struct_size = sizeof merger, .ctx = &m, .merge = merge_two};
	gradcomp_payload whole = {(char *)b->own.data - PAYLOAD_HEAD, m.bytes, m.bytes};
	memset((char *)b->own.data + bound, 0, m.bytes - PAYLOAD_HEAD - bound);
	if (b->local_bad)
		memset(b->own.data, 0, bound);
	memcpy(whole.data, &head, sizeof head);
	gradcomp_status st = eng->coll_ctx.collective->merge(eng->coll_ctx.instance, &whole, m.bytes, &merger, err);
	if (!st)
		st = read_head(&m, &whole, &head, err);
	if (!st)
		b->bad = !!(head & HEAD_BAD);
	return st;
}
