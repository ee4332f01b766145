#include "gradcomp/sdk/lowrank.h"
#include "gradcomp/sdk/needs.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/scratch.h"
#include "gradcomp/sdk/state.h"

#include <float.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <math.h>
#include <string.h>

static void shape(sdk_lowrank_tensor *a, const gradcomp_tensor *t, const gradcomp_value *values)
{
	uint64_t rank = (uint64_t)values[SDK_LOWRANK_RANK].i;
	if (t->ndim < 2 || !t->numel)
		return;
	a->n = t->dims[0];
	a->m = t->numel / a->n;
	uint64_t small = a->n < a->m ? a->n : a->m;
	a->r = rank < small ? rank : small;
	if (((double)a->n + (double)a->m) * (double)a->r * values[SDK_LOWRANK_MIN_RATIO].f >=
	    (double)a->n * (double)a->m)
		a->r = 0;
}

/* Orders by shape, then by index. Tensors sent uncompressed come first. */
static int by_shape(const void *x, const void *y)
{
	const sdk_lowrank_tensor *a = *(const sdk_lowrank_tensor *const *)x, *b = *(const sdk_lowrank_tensor *const *)y;
	if (a->r != b->r)
		return a->r < b->r ? -1 : 1;
	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	if (a->m != b->m)
		return a->m < b->m ? -1 : 1;
	return a < b ? -1 : a > b;
}

static gradcomp_status chain(sdk_lowrank *l)
{
	uint32_t n = l->layout->ntensors;
	sdk_lowrank_tensor **sorted = l->host->alloc((n + 1) * sizeof(sdk_lowrank_tensor *)), *t = l->tensors;
	if (!sorted)
		return GRADCOMP_ERR_NOMEM;
	for (uint32_t i = 0; i < n; i++) {
		sorted[i] = &t[i];
		t[i].before = t[i].after = SDK_LOWRANK_NONE;
	}
	qsort(sorted, n, sizeof(sdk_lowrank_tensor *), by_shape);
	for (uint32_t i = 1; i < n; i++) {
		sdk_lowrank_tensor *a = sorted[i - 1], *b = sorted[i];
		if (a->r != b->r || a->n != b->n || a->m != b->m)
			continue;
		a->after = (uint32_t)(b - t);
		b->before = (uint32_t)(a - t);
	}
	l->host->release(sorted);
	return GRADCOMP_OK;
}

static float *begin(const sdk_lowrank *l, uint64_t floats, uint64_t stream)
{
	float *p = l->host->alloc((floats + 1) * sizeof *p);
	if (p)
		l->host->operators->random_normal(NULL, p, floats, l->layout->seed, stream, 0);
	return p;
}

/* Tries a row of r columns, which the operator of an earlier release leaves as it is. */
static bool host_takes(const gradcomp_host *host, uint64_t r)
{
	float row[SDK_LOWRANK_MOST] = {2}, *A = row;
	if (r > SDK_LOWRANK_FEW && r <= SDK_LOWRANK_MOST)
		host->operators->orthonormalise_split(NULL, &A, 1, 1, r, NULL);
	return r <= SDK_LOWRANK_FEW || row[0] == 1;
}

/* Checks that the operators take the widest factors. */
static gradcomp_status check_width(const sdk_lowrank *l, gradcomp_error *err)
{
	const bool device = GRADCOMP_HAS(l->layout, device) && l->layout->device != GRADCOMP_HOST;
	uint64_t r = 0;
	for (uint32_t i = 0; i < l->layout->ntensors; i++)
		r = l->tensors[i].r > r ? l->tensors[i].r : r;
	if (device ? r <= SDK_LOWRANK_FEW : host_takes(l->host, r))
		return GRADCOMP_OK;
	return l->host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "%s: factors of rank %llu; %s takes %d at most", l->name,
	                     (unsigned long long)r, device ? "a device" : "this gradcomp", SDK_LOWRANK_FEW);
}

gradcomp_status sdk_lowrank_open(sdk_lowrank *l, const gradcomp_host *host, const gradcomp_value *values,
                                 const gradcomp_layout *layout, const char *name, int keep, const char *suffix,
                                 gradcomp_error *err)
{
	static const gradcomp_need needs[] = {SDK_LOWRANK_NEEDS};
	uint32_t n = layout->ntensors;
	*l = (sdk_lowrank){
		.host = host, .layout = layout, .name = name, .start_step = (uint64_t)values[SDK_LOWRANK_START_STEP].i};
	gradcomp_status st = sdk_needs(host, name, needs, sizeof needs / sizeof *needs, err);
	if (st)
		return st;
	l->tensors = host->alloc((n + 1) * sizeof *l->tensors);
	if (!l->tensors)
		goto fail;
	for (uint32_t i = 0; i < n; i++) {
		sdk_lowrank_tensor *t = &l->tensors[i];
		shape(t, &layout->tensors[i], values);
		t[1].at = t->at;
		t[1].at.P += t->n * t->r;
		t[1].at.Q += t->m * t->r;
		t[1].at.uncompressed += t->r ? 0 : layout->tensors[i].numel;
		if (t->r)
			snprintf(t->choice, sizeof t->choice, "rank %u%s", (unsigned)t->r, suffix);
		else
			snprintf(t->choice, sizeof t->choice, "dense");
	}
	st = check_width(l, err);
	if (st) {
		sdk_lowrank_close(l);
		return st;
	}
	if (chain(l) || ((keep & SDK_LOWRANK_KEEP_P) && !(l->P = begin(l, l->tensors[n].at.P, 0))) ||
	    ((keep & SDK_LOWRANK_KEEP_Q) && !(l->Q = begin(l, l->tensors[n].at.Q, 1))))
		goto fail;
	return GRADCOMP_OK;
fail:
	sdk_lowrank_close(l);
	return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory for the factors of %u tensors", name, n);
}

void sdk_lowrank_close(sdk_lowrank *l)
{
	l->host->release(l->tensors);
	l->host->release(l->P);
	l->host->release(l->Q);
}

const char *sdk_lowrank_choice(void *instance, uint32_t tensor)
{
	const sdk_lowrank *l = instance;
	return tensor < l->layout->ntensors ? l->tensors[tensor].choice : NULL;
}

sdk_lowrank_extent sdk_lowrank_sizes(const sdk_lowrank *l, const gradcomp_bucket *bucket)
{
	const sdk_lowrank_extent *a = &l->tensors[bucket->first].at;
	const sdk_lowrank_extent *b = &l->tensors[bucket->first + bucket->ntensors].at;
	return (sdk_lowrank_extent){b->uncompressed - a->uncompressed, b->P - a->P, b->Q - a->Q};
}

int sdk_lowrank_is_passthrough(const sdk_lowrank *l, const gradcomp_bucket *bucket, uint64_t step)
{
	return step < l->start_step || !sdk_lowrank_sizes(l, bucket).P;
}

double sdk_lowrank_flops(const sdk_lowrank *l, const gradcomp_bucket *bucket, int products)
{
	double flops = 0;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const sdk_lowrank_tensor *t = &l->tensors[bucket->first + i];
		flops += 2.0 * products * (double)t->n * (double)t->m * (double)t->r;
	}
	return flops;
}

gradcomp_status sdk_lowrank_expect(const sdk_lowrank *l, const gradcomp_work *work, uint32_t round,
                                   const gradcomp_payload *in, uint64_t bytes, gradcomp_error *err)
{
	if (in->bytes == bytes)
		return GRADCOMP_OK;
	return l->host->fail(err, GRADCOMP_ERR_INTERNAL, "%s: round %u of bucket %u brought %llu bytes, not %llu",
	                     l->name, round, work->bucket->index, (unsigned long long)in->bytes,
	                     (unsigned long long)bytes);
}

enum { BATCH = 16 };

/* A run of a bucket's matrices of one shape. */
typedef struct batch {
	uint32_t lead, more; /* to begin with: {0, LOWRANK_NONE} */
	uint32_t tensor[BATCH];
	size_t count;
	uint64_t n, m, r;
} batch;

/* A chain of equal shapes begins at the first of its tensors in the bucket. */
static int next(const sdk_lowrank *l, const gradcomp_bucket *b, batch *k)
{
	uint32_t end = b->first + b->ntensors, i = k->more;
	while (i >= end) {
		if (k->lead == b->ntensors)
			return 0;
		const sdk_lowrank_tensor *t = &l->tensors[b->first + k->lead++];
		if (t->r && (t->before == SDK_LOWRANK_NONE || t->before < b->first))
			i = (uint32_t)(t - l->tensors);
	}
	const sdk_lowrank_tensor *t = &l->tensors[i];
	k->n = t->n, k->m = t->m, k->r = t->r;
	for (k->count = 0; i < end && k->count < BATCH; i = l->tensors[i].after)
		k->tensor[k->count++] = i;
	k->more = i;
	return 1;
}

#define EACH_BATCH(l, b, k) for (batch k = {.more = SDK_LOWRANK_NONE}; next(l, b, &k);)

static uint64_t p_at(const sdk_lowrank *l, const gradcomp_bucket *b, uint32_t tensor)
{
	return l->tensors[tensor].at.P - l->tensors[b->first].at.P;
}

static uint64_t q_at(const sdk_lowrank *l, const gradcomp_bucket *b, uint32_t tensor)
{
	return l->tensors[tensor].at.Q - l->tensors[b->first].at.Q;
}

uint64_t sdk_lowrank_scratch(const sdk_lowrank *l, const gradcomp_bucket *bucket)
{
	const gradcomp_operators *op = sdk_layout_operators(l->host, l->layout);
	uint64_t most = 0;
	EACH_BATCH(l, bucket, k)
	{
		const uint64_t bytes[] = {op->product_scratch(k.count, k.n, k.m, k.r),
		                          op->orthonormalise_scratch(k.count, k.n, k.r),
		                          op->orthonormalise_scratch(k.count, k.m, k.r)};
		for (int i = 0; i < 3; i++)
			most = bytes[i] > most ? bytes[i] : most;
	}
	return most;
}

/* Many tensors go to, or come from, one place at once. */
static void move(const sdk_lowrank *l, const gradcomp_work *work, float *packed, int back)
{
	enum { AT_ONCE = 64 };
	const gradcomp_bucket *b = work->bucket;
	gradcomp_segment some[AT_ONCE];
	size_t count = 0;
	for (uint32_t i = 0; i < b->ntensors; i++) {
		const sdk_lowrank_tensor *t = &l->tensors[b->first + i];
		float *at = packed + (t->at.uncompressed - l->tensors[b->first].at.uncompressed);
		if (!t->r)
			some[count++] = (gradcomp_segment){.x = back ? at : work->x[i],
			                                   .grad = back ? work->x[i] : at,
			                                   .n = l->layout->tensors[b->first + i].numel,
			                                   .dtype = GRADCOMP_F32};
		if (count == AT_ONCE || (count && i + 1 == b->ntensors)) {
			work->operators->store_tensors(work->queue, some, count, NULL, NULL, NULL);
			count = 0;
		}
	}
}

void sdk_lowrank_pack(const sdk_lowrank *l, const gradcomp_work *work, float *out)
{
	move(l, work, out, 0);
}

void sdk_lowrank_unpack(const sdk_lowrank *l, const gradcomp_work *work, const float *in)
{
	move(l, work, (float *)(uintptr_t)in, 1);
}

void sdk_lowrank_random_q(const sdk_lowrank *l, const gradcomp_work *work, float *Q, uint64_t draw)
{
	work->operators->random_normal(work->queue, Q, sdk_lowrank_sizes(l, work->bucket).Q, l->layout->seed, draw,
	                               l->tensors[work->bucket->first].at.Q);
}

void sdk_lowrank_orthonormalise_p(const sdk_lowrank *l, const gradcomp_work *work, float *P, void *scratch)
{
	EACH_BATCH(l, work->bucket, k)
	{
		float *a[BATCH];
		for (size_t i = 0; i < k.count; i++)
			a[i] = P + p_at(l, work->bucket, k.tensor[i]);
		work->operators->orthonormalise_split(work->queue, a, k.count, k.n, k.r, scratch);
	}
}

void sdk_lowrank_orthonormalise_q(const sdk_lowrank *l, const gradcomp_work *work, float *Q, void *scratch)
{
	EACH_BATCH(l, work->bucket, k)
	{
		float *a[BATCH];
		for (size_t i = 0; i < k.count; i++)
			a[i] = Q + q_at(l, work->bucket, k.tensor[i]);
		work->operators->orthonormalise_split(work->queue, a, k.count, k.m, k.r, scratch);
	}
}

void sdk_lowrank_normalise_q(const sdk_lowrank *l, const gradcomp_work *work, float *Q, int stretch)
{
	EACH_BATCH(l, work->bucket, k)
	{
		float *a[BATCH];
		for (size_t i = 0; i < k.count; i++)
			a[i] = Q + q_at(l, work->bucket, k.tensor[i]);
		work->operators->normalise_columns_batch(work->queue, a, k.count, k.m, k.r,
		                                         stretch ? (float)sqrt((double)k.n / (double)k.m) : 1);
	}
}

void sdk_lowrank_product_mq(const sdk_lowrank *l, const gradcomp_work *work, float *P, const float *Q, void *scratch)
{
	EACH_BATCH(l, work->bucket, k)
	{
		const float *M[BATCH], *q[BATCH];
		float *p[BATCH];
		for (size_t i = 0; i < k.count; i++) {
			p[i] = P + p_at(l, work->bucket, k.tensor[i]);
			M[i] = work->x[k.tensor[i] - work->bucket->first];
			q[i] = Q + q_at(l, work->bucket, k.tensor[i]);
		}
		work->operators->product_mq_batch(work->queue, p, M, q, k.count, k.n, k.m, k.r, scratch);
	}
}

void sdk_lowrank_product_mtp(const sdk_lowrank *l, const gradcomp_work *work, float *Q, const float *P, void *scratch)
{
	EACH_BATCH(l, work->bucket, k)
	{
		const float *M[BATCH], *p[BATCH];
		float *q[BATCH];
		for (size_t i = 0; i < k.count; i++) {
			q[i] = Q + q_at(l, work->bucket, k.tensor[i]);
			M[i] = work->x[k.tensor[i] - work->bucket->first];
			p[i] = P + p_at(l, work->bucket, k.tensor[i]);
		}
		work->operators->product_mtp_batch(work->queue, q, M, p, k.count, k.n, k.m, k.r, scratch);
	}
}

void sdk_lowrank_finish(const sdk_lowrank *l, const gradcomp_work *work, const float *P, const float *local,
                        const float *Q)
{
	EACH_BATCH(l, work->bucket, k)
	{
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

gradcomp_status sdk_lowrank_overflow(const sdk_lowrank *l, const gradcomp_work *work, const float *factors,
                                     uint64_t floats, gradcomp_error *err)
{
	return sdk_overflow(l->host, l->name, work, factors, floats, FLT_MAX / 1024, err);
}

void sdk_lowrank_keep(const gradcomp_work *work, float *to, const float *from, uint64_t floats)
{
	if (GRADCOMP_HAS(work, hold) && work->hold)
		work->operators->copy_if(work->queue, to, from, floats, work->hold, 0);
	else
		work->operators->copy(work->queue, to, from, floats * sizeof *to);
}

/* The factors that last from step to step: behind the head the P
 * and the Q of all compressed tensors as far as they are kept, in the byte order of
 * the machine. They are the same on all ranks. */
typedef struct lengths {
	uint64_t P, Q; /* bytes */
} lengths;

static lengths measure(const sdk_lowrank *l)
{
	const sdk_lowrank_extent *end = &l->tensors[l->layout->ntensors].at;
	return (lengths){l->P ? end->P * sizeof *l->P : 0, l->Q ? end->Q * sizeof *l->Q : 0};
}

static sdk_state_header head(const sdk_lowrank *l, const lengths *n)
{
	uint64_t ranks = sdk_state_digest_add(SDK_STATE_DIGEST_SEED, n->P);
	for (uint32_t i = 0; i < l->layout->ntensors; i++)
		ranks = sdk_state_digest_add(ranks, l->tensors[i].r);
	return sdk_state_header_make(l->layout, l->name, 1, ranks, n->P + n->Q);
}

gradcomp_status sdk_lowrank_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const sdk_lowrank *l = instance;
	lengths n = measure(l);
	sdk_state_header s = head(l, &n);
	void *body;
	gradcomp_status st = sdk_state_header_write(l->host, &s, out, capacity, bytes, &body, err);
	if (body && n.P)
		memcpy(body, l->P, n.P);
	if (body && n.Q)
		memcpy((char *)body + n.P, l->Q, n.Q);
	return st;
}

gradcomp_status sdk_lowrank_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err)
{
	sdk_lowrank *l = instance;
	lengths n = measure(l);
	sdk_state_header want = head(l, &n);
	gradcomp_status st = sdk_state_header_check(l->host, &want, in, bytes, err);
	const char *body = (const char *)in + sizeof want;
	for (uint64_t i = 0; !st && i < (n.P + n.Q) / sizeof(float); i++) {
		float factor;
		memcpy(&factor, body + i * sizeof factor, sizeof factor);
		if (!isfinite(factor))
			st = l->host->fail(err, GRADCOMP_ERR_INVALID,
			                   "%s: the state is damaged: number %llu of its factors is %g", l->name,
			                   (unsigned long long)i, (double)factor);
	}
	if (!st && n.P)
		memcpy(l->P, body, n.P);
	if (!st && n.Q)
		memcpy(l->Q, body + n.P, n.Q);
	return st;
}
