/* Signs as a code for runs of a bucket, whose tensors are not known then: columns of
 * SIGNS_COLUMN numbers, or as many as were asked for; with one value, the whole run. */
#include "signs.h"

#include "coded.h"

enum { SIGNS_COLUMN = 1024 };

static uint64_t column_of(const signs *s, uint64_t n)
{
	return s->values == 1 ? n : s->length ? s->length : SIGNS_COLUMN;
}

static uint64_t values_of(const signs *s, uint64_t n)
{
	uint64_t column = column_of(s, n);
	return s->values * ((n + column - 1) / column);
}

uint64_t signs_code_bound(void *instance, uint64_t n)
{
	const signs *s = instance;
	return n ? 4 * (values_of(s, n) + s->host->operators->sign_words(n, column_of(s, n))) : 0;
}

gradcomp_status signs_code(void *instance, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                           gradcomp_error *err)
{
	const signs *s = instance;
	const gradcomp_operators *op = s->host->operators;
	float *values = out;
	(void)counter, (void)err;
	*bytes = signs_code_bound(instance, n);
	if (!n)
		return GRADCOMP_OK;
	if (s->values == 2) {
		op->sign_means(NULL, values, in, n, column_of(s, n));
	} else {
		double *sum = s->room;
		op->sum_abs(NULL, sum, in, n, (char *)s->room + SIGNS_SUM_ROOM);
		*values = (float)(*sum / (double)n);
	}
	op->sign_pack(NULL, (uint32_t *)out + values_of(s, n), in, n, column_of(s, n));
	return GRADCOMP_OK;
}

gradcomp_status signs_code_decode_add(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                      gradcomp_error *err)
{
	const signs *s = instance;
	const gradcomp_operators *op = s->host->operators;
	const coded about = {.host = s->host, .name = s->name};
	const float *values = in;
	float pair[2];
	int bad = 0;
	gradcomp_status st = coded_length(&about, bytes, signs_code_bound(instance, n), n, err);
	if (st || !n)
		return st;
	op->nonfinite(NULL, values, values_of(s, n), &bad);
	if (bad)
		return s->host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: a run of %llu numbers came with a magnitude that is not finite",
		                     s->name, (unsigned long long)n);
	if (s->values == 1) {
		pair[0] = *values;
		pair[1] = -*values;
	}
	op->sign_add(NULL, out, 1, (const uint32_t *)in + values_of(s, n), s->values == 2 ? values : pair, n,
	             column_of(s, n));
	return GRADCOMP_OK;
}

gradcomp_status signs_code_decode(void *instance, const void *in, uint64_t bytes, float *out, uint64_t n,
                                  gradcomp_error *err)
{
	const signs *s = instance;
	s->host->operators->fill(NULL, out, 0, n);
	return signs_code_decode_add(instance, in, bytes, out, n, err);
}
