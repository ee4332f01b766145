#include "reducer/bucketing/plan_msg.h"

#include "base/error.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define WORD_MAGIC ((int64_t)0x6e616c7063677631)

enum { MAGIC, STEP, KIND, TRIAL, BUCKETS, LAG, POSITIONS, SECONDS };
enum {
	PREDICTED,
	FIXED,
	EXPOSED,
	PASSES,
	ROUNDS,
	EXCHANGE_A,
	EXCHANGE_B,
	ENCODE_A,
	ENCODE_B,
	DECODE_A,
	DECODE_B,
	NSECONDS
};

size_t plan_msg_words(uint32_t n)
{
	return SECONDS + NSECONDS + 3 * (size_t)n;
}

/* Where each of the numbers is; the same for putting and taking. */
static void numbers(plan_msg *v, double *at[NSECONDS])
{
	at[PREDICTED] = &v->plan.predicted;
	at[FIXED] = &v->fixed;
	at[EXPOSED] = &v->exposed;
	at[PASSES] = &v->passes;
	at[ROUNDS] = &v->rounds;
	at[EXCHANGE_A] = &v->exchange.a;
	at[EXCHANGE_B] = &v->exchange.b;
	at[ENCODE_A] = &v->encode.a;
	at[ENCODE_B] = &v->encode.b;
	at[DECODE_A] = &v->decode.a;
	at[DECODE_B] = &v->decode.b;
}

void plan_msg_put(const plan_msg *v, uint32_t n, int64_t *words)
{
	plan_msg view = *v;
	double *at[NSECONDS];
	int64_t *w = words + SECONDS;
	memset(words, 0, plan_msg_words(n) * sizeof *words);
	words[MAGIC] = WORD_MAGIC;
	words[STEP] = (int64_t)v->step;
	words[KIND] = v->kind;
	words[TRIAL] = v->trial;
	words[BUCKETS] = v->plan.end ? v->plan.nbuckets : 0;
	words[LAG] = v->plan.lag;
	words[POSITIONS] = v->plan.position != NULL;
	numbers(&view, at);
	for (int k = 0; k < NSECONDS; k++, w++)
		memcpy(w, at[k], sizeof *w);
	for (uint32_t b = 0; v->plan.end && b < v->plan.nbuckets; b++) {
		w[b] = v->plan.end[b];
		w[n + b] = v->plan.position ? v->plan.position[b] : 0;
	}
	for (uint32_t i = 0; v->backward && i < n; i++)
		memcpy(&w[2 * (size_t)n + i], &v->backward[i], sizeof *w);
}

/* Seconds, and shares of them: none is negative or a lifetime. */
static int sensible(const int64_t *word, double *out)
{
	memcpy(out, word, sizeof *out);
	return *out >= 0 && *out < 1e9;
}

static gradcomp_status bad(gradcomp_error *err, const char *what, double value)
{
	return error_set(err, GRADCOMP_ERR_MISMATCH, "the group's first rank sent a plan that cannot be: %s %g", what,
	                 value);
}

static bool has_plan(int64_t kind)
{
	return kind == PLAN_MSG_PLAN || kind == PLAN_MSG_TRY;
}

static gradcomp_status take_plan(const int64_t *words, uint32_t n, step_plan *p, gradcomp_error *err)
{
	const int64_t *end = words + SECONDS + NSECONDS, *position = end + n;
	gradcomp_error why;
	p->nbuckets = (uint32_t)words[BUCKETS];
	p->lag = (uint32_t)words[LAG];
	p->end = calloc(p->nbuckets, sizeof *p->end);
	p->position = words[POSITIONS] ? calloc(p->nbuckets, sizeof *p->position) : NULL;
	if (!p->end || (words[POSITIONS] && !p->position))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", p->nbuckets);
	for (uint32_t b = 0; b < p->nbuckets; b++) {
		if (end[b] < 0 || end[b] > n || position[b] < 0 || position[b] > n)
			return bad(err, "a bucket's end or position",
			           (double)(end[b] < 0 || end[b] > n ? end[b] : position[b]));
		p->end[b] = (uint32_t)end[b];
		if (p->position)
			p->position[b] = (uint32_t)position[b];
	}
	if (step_plan_check(p, n, &why))
		return error_set(err, GRADCOMP_ERR_MISMATCH, "the group's first rank sent a plan that cannot be: %s",
		                 why.text);
	return GRADCOMP_OK;
}

gradcomp_status plan_msg_take(const int64_t *words, uint32_t n, uint64_t step, plan_msg *out, gradcomp_error *err)
{
	const int64_t *w = words + SECONDS;
	double *at[NSECONDS];
	plan_msg v = {0};
	gradcomp_status st = GRADCOMP_OK;
	if (words[MAGIC] != WORD_MAGIC)
		return bad(err, "its first word is", (double)words[MAGIC]);
	if ((uint64_t)words[STEP] != step)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "the group's first rank sent a plan after %lld steps, this rank is after %llu",
		                 (long long)words[STEP], (unsigned long long)step);
	if (words[KIND] < PLAN_MSG_KEEP || words[KIND] > PLAN_MSG_FIXED)
		return bad(err, "its kind is", (double)words[KIND]);
	if (words[BUCKETS] < 0 || words[BUCKETS] > n || (words[BUCKETS] != 0) != has_plan(words[KIND]))
		return bad(err, "buckets:", (double)words[BUCKETS]);
	if (words[LAG] < 0 || words[LAG] > 1 || words[POSITIONS] < 0 || words[POSITIONS] > 1)
		return bad(err, "lag:", (double)words[LAG]);
	if (words[TRIAL] < 0 || words[TRIAL] > 1 || (words[TRIAL] && !has_plan(words[KIND])))
		return bad(err, "trial:", (double)words[TRIAL]);
	v.kind = (plan_msg_kind)words[KIND];
	v.trial = (int)words[TRIAL];
	v.step = step;
	numbers(&v, at);
	for (int k = 0; k < NSECONDS; k++)
		if (!sensible(&w[k], at[k]))
			return bad(err, "a time is", *at[k]);
	v.backward = calloc(n, sizeof *v.backward);
	if (!v.backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u tensors", n);
	for (uint32_t i = 0; !st && i < n; i++)
		if (!sensible(&w[NSECONDS + 2 * (size_t)n + i], &v.backward[i]))
			st = bad(err, "a backward pass of", v.backward[i]);
	if (!st && has_plan(v.kind))
		st = take_plan(words, n, &v.plan, err);
	if (st)
		plan_msg_clear(&v);
	else
		*out = v;
	return st;
}

void plan_msg_clear(plan_msg *v)
{
	step_plan_clear(&v->plan);
	free(v->backward);
	*v = (plan_msg){0};
}
