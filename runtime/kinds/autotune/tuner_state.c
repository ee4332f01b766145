/* Saving what auto has decided, the residuals that it carries over, and its reducers' states. */
#include "kinds/autotune/tuner_state.h"

#include "reducer/state/shared_state.h"

#include "base/error.h"
#include "job/consensus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

uint64_t tuner_list_hash(const tuner *c)
{
	uint64_t h = 0;
	for (uint32_t k = 0; k < c->config.n; k++)
		h = XXH64(c->config.candidate[k].text, strlen(c->config.candidate[k].text), h + 1);
	return h;
}

uint64_t tuner_tensors_hash(const tuner *c)
{
	uint64_t h = 0;
	for (uint32_t i = 0; i < c->ntensors; i++)
		h = id_mix(h, layout_hash_tensor(&c->layout.tensors[i]));
	return h;
}

uint64_t tuner_numel(const tuner *c, uint32_t i)
{
	return c->layout.tensors[c->ntensors - 1 - i].numel;
}

uint64_t tuner_carry_bytes(const tuner *c, uint32_t i)
{
	return sizeof(uint64_t) + tuner_padded(tuner_numel(c, i) * sizeof(float));
}

gradcomp_status tuner_settle(tuner *c, const char *what, gradcomp_error *err)
{
	while ((c->turns.busy || c->turns.measuring || c->turns.callbacks) && !c->failed)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	if (c->failed)
		return error_set(err, c->failed, "%s", c->failure.text);
	if (c->step.ngiven)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	return GRADCOMP_OK;
}

static void fill_head(const tuner *c, tuner_state_head *h)
{
	memset(h, 0, sizeof *h);
	h->step = c->steps;
	h->tensors = tuner_tensors_hash(c);
	h->ntensors = c->ntensors;
	h->nparts = c->parts.partition->n;
	h->settled = c->choice.last.phase == TUNER_KEEP;
	snprintf(h->candidate, sizeof h->candidate, "%s", c->config.candidate[c->parts.now.candidate].text);
	for (uint32_t i = 0; i < c->parts.partition->n; i++)
		snprintf(h->part[i], sizeof h->part[i], "%s",
		         c->config.candidate[c->parts.partition->sub[i].candidate].text);
	h->list = tuner_list_hash(c);
	h->last = c->choice.last;
	h->error = c->timer.error;
	for (uint32_t i = 0; i < c->ntensors; i++)
		h->ncarried += (uint32_t)residual_carried(c, i);
}

/* Lists the calls that parts make for a state of one kind, which all ranks make together when they share it. */
typedef struct state_kind {
	saved_kind saved;
	gradcomp_status (*save)(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
	                        gradcomp_error *err);
	bool shared;
} state_kind;

static const state_kind own_state = {SAVED_AUTO, reducer_save, false};
static const state_kind shared_state = {SAVED_SHARED_AUTO, reducer_save_shared, true};

static gradcomp_status put_parts(const tuner *c, const state_kind *kind, char *p, const uint64_t *bytes,
                                 gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < c->parts.partition->n; i++) {
		uint64_t got;
		memcpy(p, &bytes[i], sizeof *bytes);
		st = kind->save(&c->parts.partition->sub[i].r->base, p + sizeof *bytes, bytes[i], &got, err);
		p += sizeof *bytes + tuner_padded(bytes[i]);
	}
	return st;
}

/* Writes what is carried over of tensor i, behind its number; of all ranks, its mean. */
static gradcomp_status put_carry(const tuner *c, const state_kind *kind, uint32_t i, char *p, gradcomp_error *err)
{
	const uint64_t number = i, n = tuner_numel(c, i);
	float *owed = malloc(n * sizeof *owed + 1);
	gradcomp_status st =
		owed ? residual_carry_copy(c, i, owed, err)
		     : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what is carried over of %llu numbers",
	                         (unsigned long long)n);
	if (st && kind->shared)
		job_fail(c->job, st, err->text);
	if (!st && kind->shared)
		st = shared_state_mean(c->group, owed, n, err);
	memcpy(p, &number, sizeof number);
	if (!st)
		memcpy(p + sizeof number, owed, n * sizeof *owed);
	free(owed);
	return st;
}

static void differing_saves(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	(void)claim, (void)claim0;
	snprintf(out, capacity, "saves a shared state at another step, or of another decision, than rank %d", first);
}

/* Checks that all ranks can save theirs; then the head is that of the first one. */
static gradcomp_status together(const tuner *c, tuner_state_head *h, gradcomp_status mine, gradcomp_error *err)
{
	const uint64_t claim[3] = {h->bytes, h->step, h->ncarried};
	gradcomp_status st =
		consensus(c->group,
	                  &(consensus_topic){"save a shared state", claim, sizeof claim, differing_saves, true}, mine,
	                  err);
	return st ? st : group_broadcast(c->group, h, sizeof *h, GRADCOMP_U8, 0, err);
}

/* Called with the lock held. */
static gradcomp_status save(tuner *c, const state_kind *kind, char *buf, uint64_t capacity, uint64_t *bytes,
                            gradcomp_error *err)
{
	uint64_t behind[TUNER_PARTS] = {0};
	char *p = buf;
	tuner_state_head h = {.bytes = 0};
	gradcomp_status st = tuner_settle(c, "save", err);
	for (uint32_t i = 0; !st && i < c->parts.partition->n; i++)
		st = kind->save(&c->parts.partition->sub[i].r->base, NULL, 0, &behind[i], err);
	if (!st) {
		fill_head(c, &h);
		h.bytes = sizeof h + tuner_padded(c->ntensors);
		for (uint32_t i = 0; i < c->ntensors; i++)
			h.bytes += residual_carried(c, i) ? tuner_carry_bytes(c, i) : 0;
		for (uint32_t i = 0; i < c->parts.partition->n; i++)
			h.bytes += sizeof *behind + tuner_padded(behind[i]);
		*bytes = h.bytes;
	}
	if (!st && buf && capacity < h.bytes)
		st = error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		               (unsigned long long)capacity, (unsigned long long)h.bytes);
	if (buf && kind->shared)
		st = together(c, &h, st, err);
	if (st || !buf)
		return st;
	memset(p, 0, h.bytes);
	p += sizeof h;
	memcpy(p, c->parts.partition->of, c->ntensors);
	p += tuner_padded(c->ntensors);
	for (uint32_t i = 0; !st && i < c->ntensors; i++)
		if (residual_carried(c, i)) {
			st = put_carry(c, kind, i, p, err);
			p += tuner_carry_bytes(c, i);
		}
	if (!st)
		st = put_parts(c, kind, p, behind, err);
	memcpy(buf, &h, sizeof h);
	saved_seal(kind->saved, buf, h.bytes);
	return st;
}

static gradcomp_status save_as(gradcomp_reducer *base, const state_kind *kind, void *buf, uint64_t capacity,
                               uint64_t *bytes, gradcomp_error *err)
{
	tuner *c = (tuner *)base;
	gradcomp_error why = {0};
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = save(c, kind, buf, capacity, bytes, &why);
	pthread_mutex_unlock(&c->lock);
	return st ? error_set(err, st, "%s", why.text) : GRADCOMP_OK;
}

gradcomp_status tuner_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	return save_as(base, &own_state, buf, capacity, bytes, err);
}

gradcomp_status tuner_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err)
{
	return save_as(base, &shared_state, buf, capacity, bytes, err);
}
