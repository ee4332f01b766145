/* The steps of low-rank methods on a bucket. Matrices of one shape go through
 * the operators together. */
#include "lowrank.h"

#include <math.h>

enum { BATCH = 16 };

/* A run of a bucket's matrices of one shape. */
typedef struct batch {
	uint32_t lead, more; /* to begin with: {0, LOWRANK_NONE} */
	uint32_t tensor[BATCH];
	size_t count;
	uint64_t n, m, r;
} batch;

/* A chain of equal shapes begins at the first of its tensors in the bucket. */
static int next(const lowrank *l, const gradcomp_bucket *b, batch *k)
{
	uint32_t end = b->first + b->ntensors, i = k->more;
	while (i >= end) {
		if (k->lead == b->ntensors)
			return 0;
		const lowrank_tensor *t = &l->tensors[b->first + k->lead++];
		if (t->r && (t->before == LOWRANK_NONE || t->before < b->first))
			i = (uint32_t)(t - l->tensors);
	}
	const lowrank_tensor *t = &l->tensors[i];
	k->n = t->n, k->m = t->m, k->r = t->r;
	for (k->count = 0; i < end && k->count < BATCH; i = l->tensors[i].after)
		k->tensor[k->count++] = i;
	k->more = i;
	return 1;
}

#define EACH_BATCH(l, b, k) for (batch k = {.more = LOWRANK_NONE}; next(l, b, &k);)

static uint64_t p_at(const lowrank *l, const gradcomp_bucket *b, uint32_t tensor)
{
	return l->tensors[tensor].at.P - l->tensors[b->first].at.P;
}

static uint64_t q_at(const lowrank *l, const gradcomp_bucket *b, uint32_t tensor)
{
	return l->tensors[tensor].at.Q - l->tensors[b->first].at.Q;
}

uint64_t lowrank_scratch(const lowrank *l, const gradcomp_bucket *bucket)
{
	uint64_t most = 0;
	EACH_BATCH(l, bucket, k) {
		uint64_t bytes = l->host->operators->product_scratch(k.count, k.n, k.m, k.r);
		most = bytes > most ? bytes : most;
	}
	return most;
}

void lowrank_pack(const lowrank *l, const gradcomp_work *work, float *out)
{
	const gradcomp_bucket *b = work->bucket;
	for (uint32_t i = 0; i < b->ntensors; i++) {
		const lowrank_tensor *t = &l->tensors[b->first + i];
		if (!t->r)
			work->operators->copy(work->queue, out + (t->at.whole - l->tensors[b->first].at.whole),
			                      work->x[i], l->layout->tensors[b->first + i].numel * sizeof *out);
	}
}

void lowrank_unpack(const lowrank *l, const gradcomp_work *work, const float *in)
{
	const gradcomp_bucket *b = work->bucket;
	for (uint32_t i = 0; i < b->ntensors; i++) {
		const lowrank_tensor *t = &l->tensors[b->first + i];
		if (!t->r)
			work->operators->copy(work->queue, work->x[i],
			                      in + (t->at.whole - l->tensors[b->first].at.whole),
			                      l->layout->tensors[b->first + i].numel * sizeof *in);
	}
}

void lowrank_draw_q(const lowrank *l, const gradcomp_work *work, float *Q, uint64_t draw)
{
	work->operators->random_normal(work->queue, Q, lowrank_sizes(l, work->bucket).Q, l->layout->seed, draw,
	                               l->tensors[work->bucket->first].at.Q);
}

void lowrank_orthonormalise_p(const lowrank *l, const gradcomp_work *work, float *P)
{
	EACH_BATCH(l, work->bucket, k) {
		float *a[BATCH];
		for (size_t i = 0; i < k.count; i++)
			a[i] = P + p_at(l, work->bucket, k.tensor[i]);
		work->operators->orthonormalise_batch(work->queue, a, k.count, k.n, k.r);
	}
}

void lowrank_orthonormalise_q(const lowrank *l, const gradcomp_work *work, float *Q)
{
	EACH_BATCH(l, work->bucket, k) {
		float *a[BATCH];
		for (size_t i = 0; i < k.count; i++)
			a[i] = Q + q_at(l, work->bucket, k.tensor[i]);
		work->operators->orthonormalise_batch(work->queue, a, k.count, k.m, k.r);
	}
}

void lowrank_product_mq(const lowrank *l, const gradcomp_work *work, float *P, const float *Q, void *room)
{
	EACH_BATCH(l, work->bucket, k) {
		const float *M[BATCH], *q[BATCH];
		float *p[BATCH];
		for (size_t i = 0; i < k.count; i++) {
			p[i] = P + p_at(l, work->bucket, k.tensor[i]);
			M[i] = work->x[k.tensor[i] - work->bucket->first];
			q[i] = Q + q_at(l, work->bucket, k.tensor[i]);
		}
		work->operators->product_mq_batch(work->queue, p, M, q, k.count, k.n, k.m, k.r, room);
	}
}

void lowrank_product_mtp(const lowrank *l, const gradcomp_work *work, float *Q, const float *P, void *room)
{
	EACH_BATCH(l, work->bucket, k) {
		const float *M[BATCH], *p[BATCH];
		float *q[BATCH];
		for (size_t i = 0; i < k.count; i++) {
			q[i] = Q + q_at(l, work->bucket, k.tensor[i]);
			M[i] = work->x[k.tensor[i] - work->bucket->first];
			p[i] = P + p_at(l, work->bucket, k.tensor[i]);
		}
		work->operators->product_mtp_batch(work->queue, q, M, p, k.count, k.n, k.m, k.r, room);
	}
}

void lowrank_finish(const lowrank *l, const gradcomp_work *work, const float *P, const float *local, const float *Q)
{
	EACH_BATCH(l, work->bucket, k) {
		float *x[BATCH], *e[BATCH];
		const float *p[BATCH], *own[BATCH], *q[BATCH];
		for (size_t i = 0; i < k.count; i++) {
			uint32_t in_bucket = k.tensor[i] - work->bucket->first;
			uint64_t at = q_at(l, work->bucket, k.tensor[i]);
			x[i] = work->x[in_bucket];
			e[i] = work->error[in_bucket];
			p[i] = P + p_at(l, work->bucket, k.tensor[i]);
			own[i] = local ? local + at : NULL;
			q[i] = Q + at;
		}
		work->operators->low_rank_finish_batch(work->queue, x, local ? e : NULL, p, local ? own : NULL, q,
		                                       k.count, k.n, k.m, k.r);
	}
	for (uint32_t i = 0; local && i < work->bucket->ntensors; i++)
		if (!l->tensors[work->bucket->first + i].r)
			work->operators->fill(work->queue, work->error[i], 0,
			                      l->layout->tensors[work->bucket->first + i].numel);
}

int lowrank_overflown(const lowrank *l, const gradcomp_work *work, const float *mean, uint64_t floats)
{
	int bad = 0;
	if (work->device == GRADCOMP_HOST)
		work->operators->nonfinite(work->queue, mean, floats, &bad);
	for (uint32_t i = 0; bad && i < work->bucket->ntensors; i++)
		work->operators->fill(work->queue, work->x[i], NAN,
		                      l->layout->tensors[work->bucket->first + i].numel);
	return bad;
}
