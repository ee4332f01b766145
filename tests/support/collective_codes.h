/* Codes and a merger of the tests' own, for collectives. */
#ifndef TESTS_SUPPORT_COLLECTIVE_CODES_H
#define TESTS_SUPPORT_COLLECTIVE_CODES_H

#include "gradcomp/collective.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

typedef enum code_kind {
	CODE_EXACT, /* the floats, fixed length */
	CODE_BYTES, /* a byte a number, times the largest / 127; no trailing zeroes: lossy, any length */
} code_kind;

/* A rank of a call uses this; `fault` is for one that breaks the rules. */
typedef struct test_code {
	code_kind kind;
	enum { CODE_SOUND, CODE_CUT, CODE_BEYOND, CODE_BROAD } fault;
	uint64_t calls;    /* calls of code() */
	uint64_t counters; /* sum of them: equal runs show */
	const gradcomp_host *host;
} test_code;

static uint64_t test_bound(void *ctx, uint64_t n)
{
	const test_code *c = ctx;
	uint64_t bound = c->kind == CODE_EXACT ? 4 * n : n + 4;
	return c->fault == CODE_BROAD ? 4 * n + n / 64 + 64 : bound;
}

static gradcomp_status test_encode(void *ctx, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
                                   gradcomp_error *err)
{
	test_code *c = ctx;
	int8_t *to = (int8_t *)out + 4;
	float most = 0;
	(void)err;
	c->calls++;
	c->counters += counter;
	if (c->kind == CODE_EXACT) {
		memcpy(out, in, 4 * n);
		*bytes = 4 * n;
	} else {
		for (uint64_t i = 0; i < n; i++)
			most = fabsf(in[i]) > most ? fabsf(in[i]) : most;
		most /= 127;
		memcpy(out, &most, 4);
		for (uint64_t i = 0; i < n; i++)
			to[i] = (int8_t)(most > 0 ? lrintf(in[i] / most) : 0);
		while (n && !to[n - 1])
			n--;
		*bytes = 4 + n;
	}
	if (c->fault == CODE_CUT && *bytes > 1)
		*bytes = 1;
	if (c->fault == CODE_BEYOND)
		*bytes = test_bound(c, n) + 4096;
	if (c->fault == CODE_BROAD)
		*bytes = test_bound(c, n);
	return GRADCOMP_OK;
}

static gradcomp_status test_get(const test_code *c, const void *in, uint64_t bytes, float *out, uint64_t n, int add,
                                gradcomp_error *err)
{
	const int8_t *from = (const int8_t *)in + 4;
	float step;
	if (c->kind == CODE_EXACT ? bytes != 4 * n : bytes < 4 || bytes > 4 + n)
		return c->host->fail(err, GRADCOMP_ERR_MISMATCH, "test code: %llu bytes are none of %llu numbers",
		                     (unsigned long long)bytes, (unsigned long long)n);
	memcpy(&step, in, bytes ? 4 : 0);
	for (uint64_t i = 0; i < n; i++) {
		float v = 0;
		if (c->kind == CODE_EXACT)
			memcpy(&v, (const char *)in + 4 * i, 4);
		else if (i < bytes - 4)
			v = (float)from[i] * step;
		out[i] = add ? out[i] + v : v;
	}
	return GRADCOMP_OK;
}

static gradcomp_status test_decode(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                   gradcomp_error *err)
{
	return test_get(ctx, in, bytes, out, n, 0, err);
}

static gradcomp_status test_decode_add(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
                                       gradcomp_error *err)
{
	return test_get(ctx, in, bytes, out, n, 1, err);
}

__attribute__((unused)) static gradcomp_codec test_codec(test_code *c)
{
	return (gradcomp_codec){.struct_size = sizeof(gradcomp_codec),
	                        .ctx = c,
	                        .bound = test_bound,
	                        .code = test_encode,
	                        .decode = test_decode,
	                        .decode_add = test_decode_add};
}

/* Adds two payloads of floats and drops what is small, into `dropped`. */
typedef struct test_merger {
	float *dropped; /* this rank's */
	int calls, overlaps;
	int cut; /* makes payloads that are too short */
} test_merger;

__attribute__((unused)) static gradcomp_status test_merge(void *ctx, const gradcomp_payload *a,
                                                          const gradcomp_payload *b, gradcomp_payload *out,
                                                          gradcomp_error *err)
{
	test_merger *m = ctx;
	const float *x = a->data, *y = b->data;
	float *sum = out->data;
	(void)err;
	m->calls++;
	m->overlaps += a->bytes != b->bytes || out->capacity < a->bytes;
	m->overlaps += a->bytes && (a->data == out->data || b->data == out->data || a->data == b->data);
	for (uint64_t i = 0; i < a->bytes / 4; i++) {
		float v = x[i] + y[i];
		sum[i] = fabsf(v) < 0.25f ? 0 : v;
		m->dropped[i] += v - sum[i];
	}
	out->bytes = m->cut ? a->bytes / 2 : a->bytes;
	return GRADCOMP_OK;
}

#endif
