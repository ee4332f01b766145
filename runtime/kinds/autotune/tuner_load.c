/* Taking up a saved state of auto.
 *
 * A resumed job goes on with the decision it had: nothing is tried before the next guard,
 * which comes soon where a trial was under way. Loading makes the parts anew, so all ranks
 * load together; they compare what they are about to do, and whether all could, so it is for
 * all of them or for none. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_state.h"

#include "reducer/state/reducer_state.h"
#include "reducer/state/shared_state.h"

#include "base/error.h"
#include "job/consensus.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Holds what a loaded state comes to, before it is taken up. */
typedef struct loaded {
	tuner_state_head h;
	bool shared;
	assignment to;
	uint32_t candidate[TUNER_PARTS]; /* those of the saved parts, in their order */
	partition *partition;
	float **carry;
} loaded;

static gradcomp_status find(const tuner *c, const char *text, uint32_t *out, gradcomp_error *err)
{
	for (uint32_t k = 0; k < c->config.n; k++)
		if (!strncmp(c->config.candidate[k].text, text, sizeof((tuner_state_head *)NULL)->candidate - 1)) {
			*out = k;
			return GRADCOMP_OK;
		}
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "load: the state had decided on '%.100s', which is no candidate of this job's auto", text);
}

static gradcomp_status take_carry(const tuner *c, loaded *l, const char **at, const char *end, gradcomp_error *err)
{
	for (uint32_t k = 0; k < l->h.ncarried; k++) {
		uint64_t number = UINT64_MAX;
		if (end - *at >= (ptrdiff_t)sizeof number)
			memcpy(&number, *at, sizeof number);
		if (number >= c->ntensors || l->carry[number] ||
		    (uint64_t)(end - *at) < tuner_carry_bytes(c, (uint32_t)number))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "load: the residual that the state carries over is damaged");
		size_t bytes = tuner_numel(c, (uint32_t)number) * sizeof(float);
		l->carry[number] = malloc(bytes + sizeof(float));
		if (!l->carry[number])
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %zu bytes that are still to be sent",
			                 bytes);
		gradcomp_status st = state_check_finite(c->job->host.operators, "residual that the state carries over",
		                                        *at + sizeof number, bytes, err);
		if (st)
			return st;
		memcpy(l->carry[number], *at + sizeof number, bytes);
		*at += tuner_carry_bytes(c, (uint32_t)number);
	}
	return GRADCOMP_OK;
}

static gradcomp_status find_all(const tuner *c, loaded *l, gradcomp_error *err)
{
	tuner_state_head *h = &l->h;
	gradcomp_status st = GRADCOMP_OK;
	if (!h->nparts || h->nparts > TUNER_PARTS)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state of auto has %u parts: must be 1..%d",
		                 h->nparts, TUNER_PARTS);
	h->candidate[sizeof h->candidate - 1] = 0;
	st = find(c, h->candidate, &l->to.candidate, err);
	for (uint32_t i = 0; !st && i < h->nparts; i++) {
		h->part[i][sizeof h->part[i] - 1] = 0;
		st = find(c, h->part[i], &l->candidate[i], err);
	}
	return st;
}

/* All but the parts; *rest is where their states begin. */
static gradcomp_status read_state(const tuner *c, const void *buf, uint64_t bytes, loaded *l, const char **rest,
                                  gradcomp_error *err)
{
	tuner_state_head *h = &l->h;
	const saved_kind kind = saved_kind_of(buf, bytes);
	l->shared = kind == SAVED_SHARED_AUTO;
	if (kind == SAVED_SHARED)
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"load: the shared state is of one compressor, this reducer is of auto: ask for that compressor");
	gradcomp_status st = saved_read(l->shared ? kind : SAVED_AUTO, buf, bytes, h, sizeof *h, err);
	if (st)
		return st;
	if (h->tensors != tuner_tensors_hash(c) || h->ntensors != c->ntensors)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state is of a model of %u tensors, or of others; this one has %u",
		                 h->ntensors, c->ntensors);
	st = saved_check(l->shared ? kind : SAVED_AUTO, buf, bytes, err);
	if (!st && h->bytes != bytes)
		st = error_set(err, GRADCOMP_ERR_INVALID, "load: the state has %llu bytes and should have %llu",
		               (unsigned long long)bytes, (unsigned long long)h->bytes);
	if (st)
		return st;
	l->to = (assignment){0, calloc(c->ntensors, 1)};
	l->carry = calloc(c->ntensors, sizeof *l->carry);
	if (!l->to.of || !l->carry)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to load a state");
	st = find_all(c, l, err);
	const char *at = (const char *)buf + sizeof *h, *end = (const char *)buf + bytes;
	if (!st && (uint64_t)(end - at) < tuner_padded(c->ntensors))
		st = error_set(err, GRADCOMP_ERR_INVALID, "load: the state of %llu bytes is cut off",
		               (unsigned long long)bytes);
	if (st)
		return st;
	for (uint32_t i = 0; i < c->ntensors; i++) {
		uint8_t part = (uint8_t)at[i];
		if (part >= h->nparts)
			return error_set(err, GRADCOMP_ERR_INVALID, "load: tensor %u is in part %u of %u", i, part,
			                 h->nparts);
		l->to.of[i] = (uint8_t)l->candidate[part];
	}
	at += tuner_padded(c->ntensors);
	/* Everything a decision must be, it must be here too. */
	decision d = h->last;
	d.magic = TUNER_MAGIC;
	d.step = c->steps;
	d.candidate = l->to.candidate;
	st = policy_check_decision(c, &d, l->to.of, err);
	if (!st)
		st = take_carry(c, l, &at, end, err);
	*rest = at;
	return st;
}

/* The reducer of a saved part: this job may list its candidates in another order. */
static reducer *heir(const loaded *l, uint32_t part)
{
	for (uint32_t i = 0; i < l->partition->n; i++)
		if (l->partition->sub[i].candidate == l->candidate[part])
			return l->partition->sub[i].r;
	return NULL;
}

static gradcomp_status load_parts(const loaded *l, const char *at, const char *end, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < l->h.nparts; i++) {
		uint64_t bytes = 0, left = end > at ? (uint64_t)(end - at) : 0;
		reducer *r = heir(l, i);
		gradcomp_error ignored;
		if (r && left >= sizeof bytes)
			/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): all ranks have read it up to here */
			memcpy(&bytes, at, sizeof bytes);
		if (!r || left < sizeof bytes || bytes > left - sizeof bytes) {
			/* The ranks load together. */
			if (r)
				r->base.ops->load(&r->base, NULL, 0, &ignored);
			return error_set(err, GRADCOMP_ERR_INVALID, "load: the states of auto's parts are cut off");
		}
		st = r->base.ops->load(&r->base, at + sizeof bytes, bytes, err);
		at += sizeof bytes + tuner_padded(bytes);
	}
	return st;
}

static void differing_states(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	(void)claim, (void)claim0;
	snprintf(out, capacity, "loads a state of another step or decision than rank %d", first);
}

/* Every rank shows how far it came and what it is about to do. */
static gradcomp_status together(tuner *c, gradcomp_status mine, uint64_t what, gradcomp_error *err)
{
	return consensus(c->group, &(consensus_topic){"load its state", &what, sizeof what, differing_states, false},
	                 mine, err);
}

static void take_up(tuner *c, loaded *l)
{
	const tuner_state_head *h = &l->h;
	int looks = h->last.phase <= TUNER_MEASURE;
	partition *old = c->parts.partition;
	float **carry = c->parts.carry;
	c->parts.partition = l->partition;
	l->partition = old;
	c->parts.carry = l->carry;
	l->carry = carry;
	c->parts.now.candidate = l->to.candidate;
	/* NOLINTNEXTLINE(clang-analyzer-core.NonNullParamChecker): all ranks have read it */
	memcpy(c->parts.now.of, l->to.of, c->ntensors);
	c->choice.last = h->last;
	if (h->list != tuner_list_hash(c) || l->shared) {
		memset(c->choice.last.predicted, 0, sizeof c->choice.last.predicted);
		memset(c->choice.last.measured, 0, sizeof c->choice.last.measured);
	}
	c->choice.last.reason = TUNER_LOADED;
	c->choice.last.candidate = c->parts.now.candidate;
	c->steps = c->parts.changed_at = h->step;
	tuner_gpu_restart(c);
	c->timer.error = isfinite(h->error) && h->error >= 0 ? h->error : 0;
	uint32_t soon = h->settled ? c->config.interval / 10 : c->config.window + 1;
	if (c->group->nranks > 1)
		c->next_check = c->steps + (looks ? 2 : soon);
	if (c->group->me == 0)
		policy_resume(c, looks, c->steps + (h->settled ? c->config.interval : soon));
	partition_resolve(c, c->parts.partition);
	/* It must be known which of those that have been tried are dense. */
	for (uint32_t k = 0; k < c->config.n; k++)
		if (c->choice.last.measured[k] > 0)
			tuner_candidate_resolve(&c->job->specs, c->wants.collective, &c->config.candidate[k], NULL);
	tuner_note_change(c, TUNER_LOADED);
}

static uint64_t state_hash(const loaded *l, uint32_t n)
{
	uint64_t h = XXH64(l->h.candidate, strlen(l->h.candidate), l->h.step);
	h = XXH64(l->to.of, n, h);
	for (uint32_t i = 0; i < l->h.nparts; i++)
		h = id_mix(h, l->candidate[i]);
	return id_mix(id_mix(id_mix(h, l->h.last.phase), l->h.settled), l->shared ? l->h.saved.checksum : 0);
}

gradcomp_status tuner_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	const char *rest = NULL;
	loaded l = {.partition = NULL};
	gradcomp_error own = {0};
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = tuner_settle(c, "load", &own);
	if (!st)
		st = read_state(c, buf, bytes, &l, &rest, &own);
	pthread_mutex_unlock(&c->lock);
	st = together(c, st, st ? 0 : state_hash(&l, c->ntensors), &own);
	if (!st)
		st = partition_make(c, &l.to, &l.partition, &own);
	if (!st) {
		st = load_parts(&l, rest, (const char *)buf + bytes, &own);
		st = together(c, st, 0, &own);
	}
	partition *aside = NULL;
	pthread_mutex_lock(&c->lock);
	if (!st) {
		take_up(c, &l);
		aside = c->parts.aside; /* the state has what it held back then */
		c->parts.aside = NULL;
	}
	pthread_mutex_unlock(&c->lock);
	partition_free(c, aside, 0);
	partition_free(c, l.partition, 0);
	for (uint32_t i = 0; l.carry && i < c->ntensors; i++)
		free(l.carry[i]);
	free(l.carry);
	free(l.to.of);
	return st ? error_set(err, st, "%s", own.text) : GRADCOMP_OK;
}
