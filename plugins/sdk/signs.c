#include "gradcomp/sdk/signs.h"

#include "gradcomp/sdk/coded.h"
#include "gradcomp/sdk/codes.h"
#include "gradcomp/sdk/needs.h"
#include "gradcomp/sdk/passthrough.h"
#include "gradcomp/sdk/payload.h"
#include "gradcomp/sdk/scratch.h"

/* Where a tensor's part of a payload begins, in 32-bit words. */
typedef struct extent {
	uint64_t value, bits, run;
} extent;

static extent after(const sdk_signs *s, extent at, const gradcomp_tensor *t)
{
	at.run = t->numel ? s->run(s, t) : 1;
	at.value += s->values * ((t->numel + at.run - 1) / at.run);
	at.bits += t->numel ? s->host->operators->sign_words(t->numel, at.run) : 0;
	return at;
}

static extent total(const sdk_signs *s, const gradcomp_bucket *bucket)
{
	extent at = {0};
	for (uint32_t i = 0; i < bucket->ntensors; i++)
		at = after(s, at, &s->layout->tensors[bucket->first + i]);
	return at;
}

static uint64_t payload_bytes(const sdk_signs *s, const gradcomp_bucket *bucket)
{
	extent all = total(s, bucket);
	return 4 * (all.value + all.bits);
}

gradcomp_status sdk_signs_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                               gradcomp_error *err)
{
	const sdk_signs *s = instance;
	(void)err;
	if (step < s->start_step) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	if (s->coded) {
		sdk_coded_round(bucket, plan);
		return GRADCOMP_OK;
	}
	plan->nrounds = 1;
	plan->rounds[0] = sdk_gathered_round(payload_bytes(s, bucket));
	if (s->values == 1)
		plan->scratch_bytes =
			SDK_SIGNS_SUM_SCRATCH + sdk_layout_operators(s->host, s->layout)->sum_scratch(bucket->numel);
	return GRADCOMP_OK;
}

/* The magnitudes of x[0..n), which is not empty. */
static void measure(const sdk_signs *s, const gradcomp_operators *op, void *queue, void *scratch, float *out,
                    const float *x, uint64_t n, uint64_t run)
{
	if (s->values == 2) {
		op->sign_means(queue, out, x, n, run);
	} else {
		op->sum_abs(queue, scratch, x, n, (char *)scratch + SDK_SIGNS_SUM_SCRATCH);
		op->moment(queue, out, scratch, (double)n, 1, GRADCOMP_MEAN);
	}
}

gradcomp_status sdk_signs_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                 gradcomp_error *err)
{
	const sdk_signs *s = instance;
	uint64_t values = total(s, work->bucket).value;
	extent at = {0};
	(void)round, (void)err;
	for (uint32_t i = 0; i < work->bucket->ntensors; i++) {
		const gradcomp_tensor *t = &s->layout->tensors[work->bucket->first + i];
		extent next = after(s, at, t);
		if (t->numel) {
			measure(s, work->operators, work->queue, work->scratch, (float *)out->data + at.value,
			        work->x[i], t->numel, next.run);
			work->operators->sign_pack(work->queue, (uint32_t *)out->data + values + at.bits, work->x[i],
			                           t->numel, next.run);
		}
		at = next;
	}
	out->bytes = payload_bytes(s, work->bucket);
	return GRADCOMP_OK;
}

/* Where the next tensor of a bucket is in payloads, what is made of it, and from what. */
typedef struct walk {
	const sdk_signs *s;
	const gradcomp_bucket *bucket;
	uint64_t values;
	extent at;
	float *const *y, *const *x; /* x: NULL: nothing */
} walk;

static void part_of(void *ctx, uint32_t i, gradcomp_coded *to)
{
	walk *w = ctx;
	const gradcomp_tensor *t = &w->s->layout->tensors[w->bucket->first + i];
	const extent at = i ? w->at : (extent){0};
	w->at = after(w->s, at, t);
	*to = (gradcomp_coded){.y = w->y[i],
	                       .x = w->x ? w->x[i] : NULL,
	                       .n = t->numel,
	                       .values = 4 * at.value,
	                       .codes = 4 * (w->values + at.bits),
	                       .segment = w->at.run};
}

/* Two values that stand for a run's bits; `pair` is memory of the operators' device. */
static const float *pairs_of(const sdk_signs *s, const gradcomp_operators *op, void *queue, const float *values,
                             float *pair)
{
	if (s->values == 2)
		return values;
	op->sign_pairs(queue, pair, values, 1);
	return pair;
}

gradcomp_status sdk_signs_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                 uint32_t n, gradcomp_error *err)
{
	const sdk_signs *s = instance;
	const gradcomp_bucket *b = work->bucket;
	const gradcomp_coding coding = {.struct_size = sizeof coding,
	                                .kind = s->values == 2 ? GRADCOMP_CODING_SIGNS : GRADCOMP_CODING_MAGNITUDES};
	walk w = {.s = s, .bucket = b, .values = total(s, b).value, .y = work->error, .x = work->x};
	const sdk_codes codes = {.host = s->host,
	                         .name = s->name,
	                         .work = work,
	                         .coding = &coding,
	                         .fault = "a magnitude that is not finite",
	                         .parts = b->ntensors,
	                         .part = part_of,
	                         .ctx = &w};
	gradcomp_status st;
	(void)round;
	if (work->step < s->start_step) {
		sdk_passthrough_decode(work);
		return GRADCOMP_OK;
	}
	if (s->coded)
		return GRADCOMP_OK;
	st = sdk_gathered_expect(s->host, s->layout, s->name, work, in, n, payload_bytes(s, b), err);
	if (!st)
		st = sdk_codes_check(&codes, in, n, err);
	if (st)
		return st;
	sdk_codes_sum(&codes, &in[s->layout->rank], 1, -1);
	w.y = work->x;
	w.x = NULL;
	sdk_codes_sum(&codes, in, n, 1.0f / (float)n);
	return GRADCOMP_OK;
}

gradcomp_status sdk_signs_cost(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_cost *cost,
                               gradcomp_error *err)
{
	const sdk_signs *s = instance;
	(void)err;
	cost->rounds = 1;
	cost->wire_bytes = step < s->start_step ? 4.0 * (double)bucket->numel
	                                        : (double)(s->coded ? sdk_signs_code_bound(instance, bucket->numel)
	                                                            : payload_bytes(s, bucket));
	cost->passes = step < s->start_step ? 0 : s->coded ? 8 : 5 + 2 * s->layout->nranks;
	return GRADCOMP_OK;
}

gradcomp_status sdk_signs_create(const gradcomp_host *host, const sdk_signs *from, void **instance, gradcomp_error *err)
{
	static const gradcomp_need needs[] = {SDK_SIGNS_NEEDS};
	gradcomp_status st = sdk_needs(host, from->name, needs, sizeof needs / sizeof *needs, err);
	if (st)
		return st;
	sdk_signs *s = host->alloc(sizeof *s);
	if (!s)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory", from->name);
	*s = *from;
	s->coded = sdk_coded_instead(s->layout);
	s->scratch =
		s->coded ? host->alloc(SDK_SIGNS_SUM_SCRATCH + host->operators->sum_scratch(s->layout->numel)) : NULL;
	if (s->coded && !s->scratch) {
		host->release(s);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "%s: no memory", from->name);
	}
	*instance = s;
	return GRADCOMP_OK;
}

void sdk_signs_destroy(void *instance)
{
	sdk_signs *s = instance;
	if (!s)
		return;
	s->host->release(s->scratch);
	s->host->release(s);
}

/* Signs as a code for runs of a bucket, whose tensors are not known then: columns of
 * SIGNS_COLUMN numbers, or as many as were asked for; with one value, the whole run. */
enum { SIGNS_COLUMN = 1024 };

static uint64_t column_of(const sdk_signs *s, uint64_t n)
{
	return s->values == 1 ? n : s->length ? s->length : SIGNS_COLUMN;
}

static uint64_t values_of(const sdk_signs *s, uint64_t n)
{
	uint64_t column = column_of(s, n);
	return s->values * ((n + column - 1) / column);
}

uint64_t sdk_signs_code_bound(void *instance, uint64_t n)
{
	const sdk_signs *s = instance;
	return n ? 4 * (values_of(s, n) + s->host->operators->sign_words(n, column_of(s, n))) : 0;
}

gradcomp_status sdk_signs_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out,
                               uint64_t *bytes, gradcomp_error *err)
{
	const sdk_signs *s = instance;
	const gradcomp_operators *op = s->host->operators;
	(void)counter, (void)err;
	*bytes = sdk_signs_code_bound(instance, n);
	if (!n)
		return GRADCOMP_OK;
	measure(s, op, NULL, s->scratch, out, in, n, column_of(s, n));
	op->sign_pack(NULL, (uint32_t *)out + values_of(s, n), in, n, column_of(s, n));
	return GRADCOMP_OK;
}

gradcomp_status sdk_signs_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                          gradcomp_error *err)
{
	const sdk_signs *s = instance;
	const gradcomp_operators *op = s->host->operators;
	const sdk_coded about = {.host = s->host, .name = s->name};
	float pair[2];
	gradcomp_status st = sdk_coded_length(&about, bytes, sdk_signs_code_bound(instance, n), n, err);
	if (st || !n)
		return st;
	/* A magnitude that is not finite is that of a sum that has overflowed. */
	op->sign_add(NULL, out, 1, (const uint32_t *)in + values_of(s, n), pairs_of(s, op, NULL, in, pair), n,
	             column_of(s, n));
	return GRADCOMP_OK;
}

gradcomp_status sdk_signs_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                      gradcomp_error *err)
{
	const sdk_signs *s = instance;
	s->host->operators->fill(NULL, out, 0, n);
	return sdk_signs_code_decode_add(instance, in, bytes, out, n, err);
}
