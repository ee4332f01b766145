/* Saving and loading a reducer's state; state.h says what is in it.
 *
 * A state brings its plan along: a job that is resumed goes on with the buckets and the order
 * it had, hence to the bit. It takes nothing from other ranks, each of which loads its own
 * of the same step. */
#include "state.h"

#include "front.h"
#include "gpu.h"
#include "replan.h"
#include "shards.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status reducer_between_steps(const gradcomp_reducer *r, const char *what, gradcomp_error *err)
{
	if (r->failed)
		return error_set(err, r->failed, "%s", r->failure.text);
	if (r->ngiven)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	return GRADCOMP_OK;
}

static unsigned char *put_words(unsigned char *p, const uint32_t *words, uint32_t n)
{
	memcpy(p, words, n * sizeof *words);
	return p + n * sizeof *words;
}

/* Array s of those whose numbers are the keeper's: error memory comes first. */
static float *array_of(const gradcomp_reducer *k, uint32_t s)
{
	return !k->error ? k->state[s] : s ? k->state[s - 1] : k->error;
}

/* The arrays and the collective's memory, state_array_bytes() of them. */
static gradcomp_status put_arrays(const gradcomp_reducer *r, const division *d, unsigned char *p, gradcomp_error *err)
{
	const gradcomp_reducer *k = state_keeper(r, d);
	size_t bytes = k->layout.numel * sizeof(float);
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t s = 0; !st && s < !!k->error + r->compressor->state_arrays; s++, p += bytes)
		st = gpu_copy(r, p, array_of(k, s), bytes, err);
	if (!st && d->nresident)
		memcpy(p, d->resident, d->nresident * sizeof(float));
	return st;
}

static gradcomp_status take_arrays(const gradcomp_reducer *r, const division *d, const unsigned char *p,
                                   gradcomp_error *err)
{
	const gradcomp_reducer *k = state_keeper(r, d);
	size_t bytes = k->layout.numel * sizeof(float);
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t s = 0; !st && s < !!k->error + r->compressor->state_arrays; s++, p += bytes)
		st = gpu_copy(r, array_of(k, s), p, bytes, err);
	if (!st && d->nresident)
		memcpy(d->resident, p, d->nresident * sizeof(float));
	return st;
}

/* With the lock held. */
static gradcomp_status save(gradcomp_reducer *r, unsigned char *buf, uint64_t capacity, uint64_t *bytes,
                            gradcomp_error *err)
{
	const division d = division_of(r);
	const gradcomp_reducer *k = state_keeper(r, &d);
	uint64_t own = 0, words = 2 * (uint64_t)d.nbuckets * sizeof(uint32_t);
	step_plan plan = {0};
	state_head h;
	gradcomp_status st = reducer_between_steps(r, "save", err);
	if (!st && k->instance && r->compressor->save)
		st = r->compressor->save(k->instance, NULL, 0, &own, err);
	if (st)
		return st;
	*bytes = sizeof h + words + state_array_bytes(r, &d) + own;
	if (!buf)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		                 (unsigned long long)capacity, (unsigned long long)*bytes);
	st = division_plan(r, &plan, err);
	if (st)
		return st;
	state_describe(r, &d, own, &h);
	unsigned char *p = put_words(buf + sizeof h, plan.end, plan.nbuckets);
	p = put_words(p, plan.place, plan.nbuckets);
	step_plan_clear(&plan);
	st = put_arrays(r, &d, p, err);
	if (!st && own)
		st = r->compressor->save(k->instance, p + state_array_bytes(r, &d), own, &own, err);
	memcpy(buf, &h, sizeof h);
	h.checksum = state_checksum(buf, *bytes);
	memcpy(buf, &h, sizeof h);
	return st;
}

gradcomp_status reducer_save(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	pthread_mutex_lock(&r->lock);
	queue_settle(r);
	gradcomp_status st = save(r, buf, capacity, bytes, err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

/* The state's plan, or of one that has none that in force. */
static gradcomp_status plan_of(const gradcomp_reducer *r, const state_head *h, const unsigned char *state,
                               uint64_t *body, uint64_t bytes, step_plan *out, gradcomp_error *err)
{
	size_t n = h->nbuckets * sizeof(uint32_t);
	gradcomp_status st;
	if (*body < sizeof *h)
		return division_plan(r, out, err);
	if (h->nbuckets > r->layout.ntensors || 2 * n > bytes - *body)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state has a plan of %u buckets for %u tensors", h->nbuckets,
		                 r->layout.ntensors);
	*out = (step_plan){.nbuckets = h->nbuckets, .lag = h->lag, .end = malloc(n + 1), .place = malloc(n + 1)};
	if (!out->end || !out->place)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", h->nbuckets);
	memcpy(out->end, state + *body, n);
	memcpy(out->place, state + *body + n, n);
	*body += 2 * n;
	gradcomp_error why = {0};
	st = division_check(r, out, &why);
	return st ? error_set(err, st, "load: the state's plan is none of this reducer: %.300s", why.text) : GRADCOMP_OK;
}

/* With the lock held. *d is what the state makes of the reducer, and afterwards what was. */
static gradcomp_status load(gradcomp_reducer *r, const unsigned char *state, uint64_t bytes, division *d,
                            step_plan *plan, gradcomp_error *err)
{
	uint64_t body;
	state_head h;
	gradcomp_status st = reducer_between_steps(r, "load", err);
	if (!st)
		st = state_check(r, state, bytes, &h, &body, err);
	if (!st)
		st = plan_of(r, &h, state, &body, bytes, plan, err);
	if (!st)
		st = division_make(r, plan, d, err);
	if (!st)
		st = division_resident(r, d, err);
	if (!st)
		st = state_fits(r, d, &h, body, bytes, err);
	const gradcomp_reducer *k = state_keeper(r, d);
	if (!st && k->instance && r->compressor->load)
		st = r->compressor->load(k->instance, state + body + state_array_bytes(r, d), h.plugin_bytes, err);
	if (!st)
		st = take_arrays(r, d, state + body, err);
	if (st)
		return st;
	if (r->shards)
		shards_carry(r, d);
	division_swap(r, d);
	r->step = h.step;
	replan_loaded(r, h.settled != 0);
	if (r->shards)
		shards_next(r);
	return GRADCOMP_OK;
}

gradcomp_status reducer_load(gradcomp_reducer *r, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	division d = {0};
	step_plan plan = {0};
	pthread_mutex_lock(&r->lock);
	queue_settle(r);
	gradcomp_status st = load(r, buf, bytes, &d, &plan, err);
	pthread_mutex_unlock(&r->lock);
	division_free(r, &d);
	step_plan_clear(&plan);
	return st;
}
