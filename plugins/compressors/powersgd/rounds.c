/* One step: what is sent and what is made of it. */
#include <string.h>

#include "powersgd.h"

static int whole(const powersgd *p, const matrix *t, uint64_t step)
{
	return !t->r || step < p->start_step;
}

/* Where a tensor's pieces are, in floats: in the two payloads, and in scratch,
 * which holds P and behind it Q_w. */
typedef struct place {
	uint64_t first, second, P, Q;
} place;

/* From tensor to tensor; the one before the first is at {0}, with end as its end. */
static void place_next(const powersgd *p, uint32_t tensor, uint64_t step, place *at, place *end)
{
	const matrix *t = &p->tensors[tensor];
	*at = *end;
	if (whole(p, t, step)) {
		end->first += p->layout->tensors[tensor].numel;
		return;
	}
	at->Q = at->P + (t->n * t->r + 15) / 16 * 16;
	end->first += t->n * t->r;
	end->second += t->m * t->r;
	end->P = at->Q + (t->m * t->r + 15) / 16 * 16;
}

gradcomp_status powersgd_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                              gradcomp_error *err)
{
	const powersgd *p = instance;
	place at, end = {0};
	(void)err;
	for (uint32_t i = 0; i < bucket->ntensors; i++)
		place_next(p, bucket->first + i, step, &at, &end);
	plan->nrounds = end.second ? 2 : 1;
	for (uint32_t r = 0; r < plan->nrounds; r++)
		plan->rounds[r] = (gradcomp_round){
			.pattern = GRADCOMP_SUMMED,
			.dtype = GRADCOMP_F32,
			.flags = GRADCOMP_ROUND_MEAN,
			.count = r ? end.second : end.first,
		};
	plan->scratch_bytes = end.P * sizeof(float);
	return GRADCOMP_OK;
}

static void encode_first(const powersgd *p, const gradcomp_work *work, uint32_t i, place at, float *out)
{
	uint32_t tensor = work->bucket->first + i;
	const matrix *t = &p->tensors[tensor];
	const gradcomp_operators *op = work->operators;
	if (whole(p, t, work->step)) {
		if (p->layout->tensors[tensor].numel)
			memcpy(out + at.first, work->x[i], p->layout->tensors[tensor].numel * sizeof *out);
		return;
	}
	float *Q = (float *)work->scratch + at.Q;
	if (p->warm)
		memcpy(Q, p->Q + t->q, t->m * t->r * sizeof *Q);
	else
		powersgd_draw(p, tensor, work->step, op, work->queue, Q);
	op->orthonormalise(work->queue, Q, t->m, t->r);
	op->product_mq(work->queue, out + at.first, work->x[i], Q, t->n, t->m, t->r);
}

gradcomp_status powersgd_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                gradcomp_error *err)
{
	const powersgd *p = instance;
	const gradcomp_operators *op = work->operators;
	place at, end = {0};
	(void)err;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		const matrix *t = &p->tensors[work->bucket->first + i];
		place_next(p, work->bucket->first + i, work->step, &at, &end);
		if (!round) {
			encode_first(p, work, i, at, out->data);
		} else if (!whole(p, t, work->step)) {
			float *scratch = work->scratch;
			op->product_mtp(work->queue, scratch + at.Q, work->x[i], scratch + at.P, t->n, t->m, t->r);
			memcpy((float *)out->data + at.second, scratch + at.Q, t->m * t->r * sizeof *scratch);
		}
	}
	out->bytes = (round ? end.second : end.first) * sizeof(float);
	return GRADCOMP_OK;
}

/* A tensor sent whole is done after round 0; a bucket's error memory is written
 * at the end, when nothing can fail any more. */
static void decode_first(const powersgd *p, const gradcomp_work *work, uint32_t i, place at, const float *in)
{
	uint32_t tensor = work->bucket->first + i;
	const matrix *t = &p->tensors[tensor];
	if (whole(p, t, work->step)) {
		if (p->layout->tensors[tensor].numel)
			memcpy(work->x[i], in + at.first, p->layout->tensors[tensor].numel * sizeof *in);
		return;
	}
	float *P = (float *)work->scratch + at.P;
	memcpy(P, in + at.first, t->n * t->r * sizeof *P);
	work->operators->orthonormalise(work->queue, P, t->n, t->r);
}

/* Finite gradients can still be so large that a product is not. Then the tensor's
 * average is NaN on every rank, as a plain sum's would be, and its memory stays. */
static void decode_last(powersgd *p, const gradcomp_work *work, uint32_t i, place at, const float *in)
{
	uint32_t tensor = work->bucket->first + i;
	const matrix *t = &p->tensors[tensor];
	const gradcomp_operators *op = work->operators;
	uint64_t numel = p->layout->tensors[tensor].numel;
	const float *P = (const float *)work->scratch + at.P, *local = (const float *)work->scratch + at.Q;
	int bad;
	if (whole(p, t, work->step)) {
		if (numel)
			memset(work->error[i], 0, numel * sizeof *work->error[i]);
		return;
	}
	op->nonfinite(work->queue, in + at.second, t->m * t->r, &bad);
	if (bad) {
		memset(work->x[i], 0xff, numel * sizeof *work->x[i]);
		return;
	}
	op->low_rank_finish(work->queue, work->x[i], work->error[i], P, local, in + at.second, t->n, t->m, t->r);
	if (p->warm)
		memcpy(p->Q + t->q, in + at.second, t->m * t->r * sizeof *p->Q);
}

gradcomp_status powersgd_decode(void *instance, const gradcomp_work *work, uint32_t round,
                                const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	powersgd *p = instance;
	place at, end = {0};
	(void)n;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++)
		place_next(p, work->bucket->first + i, work->step, &at, &end);
	uint64_t want = (round ? end.second : end.first) * sizeof(float);
	if (in->bytes != want)
		return p->host->fail(err, GRADCOMP_ERR_INTERNAL,
		                     "powersgd: round %u of bucket %u brought %llu bytes, not %llu", round,
		                     work->bucket->index, (unsigned long long)in->bytes, (unsigned long long)want);
	int last = round || !end.second;
	end = (place){0};
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		place_next(p, work->bucket->first + i, work->step, &at, &end);
		if (!round)
			decode_first(p, work, i, at, in->data);
		if (last)
			decode_last(p, work, i, at, in->data);
	}
	return GRADCOMP_OK;
}

gradcomp_status powersgd_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                              gradcomp_error *err)
{
	const powersgd *p = instance;
	place at, end = {0};
	(void)err;
	for (uint32_t i = 0; i < bucket->ntensors; i++) {
		const matrix *t = &p->tensors[bucket->first + i];
		place_next(p, bucket->first + i, step, &at, &end);
		if (!whole(p, t, step))
			cost->flops += 8.0 * (double)t->n * (double)t->m * (double)t->r;
	}
	cost->rounds = end.second ? 2 : 1;
	cost->wire_bytes = 4.0 * ((double)end.first + (double)end.second);
	cost->passes = 5;
	return GRADCOMP_OK;
}
