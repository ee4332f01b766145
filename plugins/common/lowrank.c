/* Which tensors are compressed, and where their factors stand. */
#include "lowrank.h"

#include <stdio.h>
#include <stdlib.h>

static void shape(lowrank_tensor *a, const gradcomp_tensor *t, const gradcomp_value *values)
{
	uint64_t rank = (uint64_t)values[LOWRANK_RANK].i;
	if (t->ndim < 2 || !t->numel)
		return;
	a->n = t->dims[0];
	a->m = t->numel / a->n;
	uint64_t small = a->n < a->m ? a->n : a->m;
	a->r = rank < small ? rank : small;
	if (((double)a->n + (double)a->m) * (double)a->r * values[LOWRANK_MIN_RATIO].f >=
	    (double)a->n * (double)a->m)
		a->r = 0;
}

/* By shape, then by place. Tensors sent whole come first. */
static int by_shape(const void *x, const void *y)
{
	const lowrank_tensor *a = *(const lowrank_tensor *const *)x, *b = *(const lowrank_tensor *const *)y;
	if (a->r != b->r)
		return a->r < b->r ? -1 : 1;
	if (a->n != b->n)
		return a->n < b->n ? -1 : 1;
	if (a->m != b->m)
		return a->m < b->m ? -1 : 1;
	return a < b ? -1 : a > b;
}

static gradcomp_status chain(lowrank *l)
{
	uint32_t n = l->layout->ntensors;
	lowrank_tensor **sorted = l->host->alloc((n + 1) * sizeof(lowrank_tensor *)), *t = l->tensors;
	if (!sorted)
		return GRADCOMP_ERR_NOMEM;
	for (uint32_t i = 0; i < n; i++) {
		sorted[i] = &t[i];
		t[i].before = t[i].after = LOWRANK_NONE;
	}
	qsort(sorted, n, sizeof(lowrank_tensor *), by_shape);
	for (uint32_t i = 1; i < n; i++) {
		lowrank_tensor *a = sorted[i - 1], *b = sorted[i];
		if (a->r != b->r || a->n != b->n || a->m != b->m)
			continue;
		a->after = (uint32_t)(b - t);
		b->before = (uint32_t)(a - t);
	}
	l->host->release(sorted);
	return GRADCOMP_OK;
}

static float *begin(const lowrank *l, uint64_t floats, uint64_t stream)
{
	float *p = l->host->alloc((floats + 1) * sizeof *p);
	if (p)
		l->host->operators->random_normal(NULL, p, floats, l->layout->seed, stream, 0);
	return p;
}

gradcomp_status lowrank_open(lowrank *l, const gradcomp_host *host, const gradcomp_value *values,
                             const gradcomp_layout *layout, const char *name, int keep, const char *suffix,
                             gradcomp_error *err)
{
	uint32_t n = layout->ntensors;
	*l = (lowrank){
		.host = host, .layout = layout, .name = name, .start_step = (uint64_t)values[LOWRANK_START_STEP].i};
	l->tensors = host->alloc((n + 1) * sizeof *l->tensors);
	if (!l->tensors)
		goto fail;
	for (uint32_t i = 0; i < n; i++) {
		lowrank_tensor *t = &l->tensors[i];
		shape(t, &layout->tensors[i], values);
		t[1].at = t->at;
		t[1].at.P += t->n * t->r;
		t[1].at.Q += t->m * t->r;
		t[1].at.whole += t->r ? 0 : layout->tensors[i].numel;
		if (t->r)
			snprintf(t->choice, sizeof t->choice, "rank %u%s", (unsigned)t->r, suffix);
		else
			snprintf(t->choice, sizeof t->choice, "dense");
	}
	if (chain(l) || ((keep & LOWRANK_KEEP_P) && !(l->P = begin(l, l->tensors[n].at.P, 0))) ||
	    ((keep & LOWRANK_KEEP_Q) && !(l->Q = begin(l, l->tensors[n].at.Q, 1))))
		goto fail;
	return GRADCOMP_OK;
fail:
	lowrank_close(l);
	return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory for the factors of %u tensors", name, n);
}

void lowrank_close(lowrank *l)
{
	l->host->release(l->tensors);
	l->host->release(l->P);
	l->host->release(l->Q);
}

const char *lowrank_choice(void *instance, uint32_t tensor)
{
	const lowrank *l = instance;
	return tensor < l->layout->ntensors ? l->tensors[tensor].choice : NULL;
}

lowrank_place lowrank_sizes(const lowrank *l, const gradcomp_bucket *bucket)
{
	const lowrank_place *a = &l->tensors[bucket->first].at;
	const lowrank_place *b = &l->tensors[bucket->first + bucket->ntensors].at;
	return (lowrank_place){b->whole - a->whole, b->P - a->P, b->Q - a->Q};
}

int lowrank_is_dense(const lowrank *l, const gradcomp_bucket *bucket, uint64_t step)
{
	return step < l->start_step || !lowrank_sizes(l, bucket).P;
}

double lowrank_flops(const lowrank *l, const gradcomp_bucket *bucket, int products)
{
	double flops = 0;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const lowrank_tensor *t = &l->tensors[bucket->first + i];
		flops += 2.0 * products * (double)t->n * (double)t->m * (double)t->r;
	}
	return flops;
}

gradcomp_status lowrank_expect(const lowrank *l, const gradcomp_work *work, uint32_t round,
                               const gradcomp_payload *in, uint64_t bytes, gradcomp_error *err)
{
	if (in->bytes == bytes)
		return GRADCOMP_OK;
	return l->host->fail(err, GRADCOMP_ERR_INTERNAL, "%s: round %u of bucket %u brought %llu bytes, not %llu",
	                     l->name, round, work->bucket->index, (unsigned long long)in->bytes,
	                     (unsigned long long)bytes);
}
