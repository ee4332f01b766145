/* Saving and loading what auto has decided, what it owes, and its parts' states.
 *
 * One byte string: a head; which part each tensor is in; each owed tensor's number and floats; each
 * part's length and state. A resumed job goes on with the decision it had: nothing is tried
 * before the next guard, which comes soon where a trial was under way. Loading makes the
 * parts anew, so all ranks load together; they compare what they are about to do, and
 * whether all could, so it is for all of them or for none. */
#include "choice_parts.h"

#include "checksum.h"
#include "error.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char magic[8] = "GCAUTO01";

typedef struct head {
	char magic[8];
	uint64_t checksum; /* of all that follows it */
	uint64_t bytes, step, tensors;
	uint32_t ntensors, nparts, nowed, settled;
	char candidate[256], part[CHOICE_PARTS][256]; /* as they were written */
	uint64_t list;                  /* hash of all candidates: whose times these are */
	decision last;
	double error;
} head;

/* What a loaded state comes to, before it is taken up. */
typedef struct loaded {
	head h;
	assignment to;
	uint32_t candidate[CHOICE_PARTS]; /* of the saved parts, in their order */
	parts *parts;
	float **owed;
} loaded;

static uint64_t list_hash(const choice *c)
{
	uint64_t h = 0;
	for (uint32_t k = 0; k < c->wish.n; k++)
		h = checksum_of(c->wish.candidate[k].text, strlen(c->wish.candidate[k].text), h + 1);
	return h;
}

static uint64_t tensors_hash(const choice *c)
{
	uint64_t h = 0;
	for (uint32_t i = 0; i < c->ntensors; i++)
		h = id_mix(h, layout_hash_tensor(&c->shape->tensors[i]));
	return h;
}

static uint64_t numel_of(const choice *c, uint32_t i)
{
	return c->shape->tensors[c->ntensors - 1 - i].numel;
}

static uint64_t padded(uint64_t bytes)
{
	return (bytes + 7) & ~(uint64_t)7;
}

static uint64_t owed_bytes(const choice *c, uint32_t i)
{
	return sizeof(uint64_t) + padded(numel_of(c, i) * sizeof(float));
}

static uint64_t head_checksum(const void *buf, uint64_t bytes)
{
	return checksum_of((const char *)buf + offsetof(head, bytes), bytes - offsetof(head, bytes), 0);
}

/* With the lock held: no check runs, nothing is in flight. */
static gradcomp_status settle(choice *c, const char *what, gradcomp_error *err)
{
	while ((c->busy || c->measuring || c->callbacks) && !c->failed)
		pthread_cond_wait(&c->changed, &c->lock);
	if (c->failed)
		return error_set(err, c->failed, "%s", c->failure.text);
	if (c->ngiven)
		return error_set(err, GRADCOMP_ERR_STATE, "%s in the middle of a step: wait for it first", what);
	return GRADCOMP_OK;
}

static void fill_head(const choice *c, head *h)
{
	memset(h, 0, sizeof *h);
	memcpy(h->magic, magic, sizeof magic);
	h->step = c->steps;
	h->tensors = tensors_hash(c);
	h->ntensors = c->ntensors;
	h->nparts = c->parts->n;
	h->settled = c->last.phase == CHOICE_KEEP;
	snprintf(h->candidate, sizeof h->candidate, "%s", c->wish.candidate[c->now.candidate].text);
	for (uint32_t i = 0; i < c->parts->n; i++)
		snprintf(h->part[i], sizeof h->part[i], "%s", c->wish.candidate[c->parts->part[i].candidate].text);
	h->list = list_hash(c);
	h->last = c->last;
	h->error = c->pulse.error;
	for (uint32_t i = 0; i < c->ntensors; i++)
		h->nowed += c->owed[i] != NULL;
}

static gradcomp_status put_parts(const choice *c, char *p, const uint64_t *bytes, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < c->parts->n; i++) {
		uint64_t got;
		memcpy(p, &bytes[i], sizeof *bytes);
		st = reducer_save(c->parts->part[i].r, p + sizeof *bytes, bytes[i], &got, err);
		p += sizeof *bytes + padded(bytes[i]);
	}
	return st;
}

gradcomp_status choice_save(void *front, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	choice *c = front;
	uint64_t behind[CHOICE_PARTS] = {0};
	char *p = buf;
	head h;
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = settle(c, "save", err);
	for (uint32_t i = 0; !st && i < c->parts->n; i++)
		st = reducer_save(c->parts->part[i].r, NULL, 0, &behind[i], err);
	if (st)
		goto done;
	fill_head(c, &h);
	h.bytes = sizeof h + padded(c->ntensors);
	for (uint32_t i = 0; i < c->ntensors; i++)
		h.bytes += c->owed[i] ? owed_bytes(c, i) : 0;
	for (uint32_t i = 0; i < c->parts->n; i++)
		h.bytes += sizeof *behind + padded(behind[i]);
	*bytes = h.bytes;
	if (!buf)
		goto done;
	if (capacity < h.bytes) {
		st = error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		               (unsigned long long)capacity, (unsigned long long)h.bytes);
		goto done;
	}
	memset(p, 0, h.bytes);
	memcpy(p, &h, sizeof h);
	p += sizeof h;
	memcpy(p, c->parts->of, c->ntensors);
	p += padded(c->ntensors);
	for (uint32_t i = 0; i < c->ntensors; i++) {
		uint64_t number = i;
		if (!c->owed[i])
			continue;
		memcpy(p, &number, sizeof number);
		memcpy(p + sizeof number, c->owed[i], numel_of(c, i) * sizeof(float));
		p += owed_bytes(c, i);
	}
	st = put_parts(c, p, behind, err);
	h.checksum = head_checksum(buf, h.bytes);
	memcpy(buf, &h, sizeof h);
done:
	pthread_mutex_unlock(&c->lock);
	return st;
}

/* ---- loading ---- */

static gradcomp_status find(const choice *c, const char *text, uint32_t *out, gradcomp_error *err)
{
	for (uint32_t k = 0; k < c->wish.n; k++)
		if (!strncmp(c->wish.candidate[k].text, text, sizeof((head *)NULL)->candidate - 1)) {
			*out = k;
			return GRADCOMP_OK;
		}
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "load: the state had decided on '%.100s', which is no candidate of this job's auto", text);
}

static gradcomp_status take_owed(const choice *c, loaded *l, const char **at, const char *end, gradcomp_error *err)
{
	for (uint32_t k = 0; k < l->h.nowed; k++) {
		uint64_t number = UINT64_MAX;
		if (end - *at >= (ptrdiff_t)sizeof number)
			memcpy(&number, *at, sizeof number);
		if (number >= c->ntensors || l->owed[number] ||
		    (uint64_t)(end - *at) < owed_bytes(c, (uint32_t)number))
			return error_set(err, GRADCOMP_ERR_INVALID, "load: what the state owes is damaged");
		size_t bytes = numel_of(c, (uint32_t)number) * sizeof(float);
		l->owed[number] = malloc(bytes + sizeof(float));
		if (!l->owed[number])
			return error_set(err, GRADCOMP_ERR_NOMEM,
			                 "no memory for %zu bytes that are still to be sent", bytes);
		memcpy(l->owed[number], *at + sizeof number, bytes);
		*at += owed_bytes(c, (uint32_t)number);
	}
	return GRADCOMP_OK;
}

static gradcomp_status find_all(const choice *c, loaded *l, gradcomp_error *err)
{
	head *h = &l->h;
	gradcomp_status st = GRADCOMP_OK;
	if (!h->nparts || h->nparts > CHOICE_PARTS)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state of auto has %u parts: must be 1..%d",
		                 h->nparts, CHOICE_PARTS);
	h->candidate[sizeof h->candidate - 1] = 0;
	st = find(c, h->candidate, &l->to.candidate, err);
	for (uint32_t i = 0; !st && i < h->nparts; i++) {
		h->part[i][sizeof h->part[i] - 1] = 0;
		st = find(c, h->part[i], &l->candidate[i], err);
	}
	return st;
}

/* All but the parts; *rest is where their states begin. */
static gradcomp_status read_state(const choice *c, const void *buf, uint64_t bytes, loaded *l, const char **rest,
                                  gradcomp_error *err)
{
	head *h = &l->h;
	if (!buf || bytes < sizeof *h)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: %llu bytes are no saved state of auto",
		                 (unsigned long long)bytes);
	memcpy(h, buf, sizeof *h);
	if (memcmp(h->magic, magic, sizeof magic))
		return error_set(err, GRADCOMP_ERR_INVALID, "load: not a saved state of auto");
	if (h->tensors != tensors_hash(c) || h->ntensors != c->ntensors)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state is of a model of %u tensors, or of others; this one has %u",
		                 h->ntensors, c->ntensors);
	if (h->bytes != bytes || h->checksum != head_checksum(buf, bytes))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "load: the state is damaged (its length or its checksum differs)");
	l->to = (assignment){0, calloc(c->ntensors, 1)};
	l->owed = calloc(c->ntensors, sizeof *l->owed);
	if (!l->to.of || !l->owed)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to load a state");
	gradcomp_status st = find_all(c, l, err);
	const char *at = (const char *)buf + sizeof *h, *end = (const char *)buf + bytes;
	if (!st && (uint64_t)(end - at) < padded(c->ntensors))
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
	at += padded(c->ntensors);
	/* Everything a decision must be, it must be here too. */
	decision d = h->last;
	d.magic = CHOICE_MAGIC;
	d.step = c->steps;
	d.candidate = l->to.candidate;
	st = decision_check(c, &d, l->to.of, err);
	if (!st)
		st = take_owed(c, l, &at, end, err);
	*rest = at;
	return st;
}

/* The reducer of a saved part: this job may list its candidates in another order. */
static gradcomp_reducer *heir(const loaded *l, uint32_t part)
{
	for (uint32_t i = 0; i < l->parts->n; i++)
		if (l->parts->part[i].candidate == l->candidate[part])
			return l->parts->part[i].r;
	return NULL;
}

static gradcomp_status load_parts(const loaded *l, const char *at, const char *end, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; !st && i < l->h.nparts; i++) {
		uint64_t bytes = UINT64_MAX;
		gradcomp_reducer *r = heir(l, i);
		if (end - at >= (ptrdiff_t)sizeof bytes)
			memcpy(&bytes, at, sizeof bytes);
		if (!r || bytes > (uint64_t)(end - at) - sizeof bytes)
			return error_set(err, GRADCOMP_ERR_INVALID, "load: the states of auto's parts are cut off");
		st = reducer_load(r, at + sizeof bytes, bytes, err);
		at += sizeof bytes + padded(bytes);
	}
	return st;
}

/* Every rank shows how far it came and what it is about to do. */
static gradcomp_status together(choice *c, gradcomp_status mine, uint64_t what, gradcomp_error *err)
{
	struct claim {
		int32_t status;
		uint32_t reserved;
		uint64_t what;
	} own = {mine, 0, what}, *all = calloc((size_t)c->group->nranks, sizeof *all);
	gradcomp_error gathered;
	if (!all) {
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory to load a state");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to load a state");
	}
	gradcomp_status st = group_exchange(c->group, &own, all, sizeof own, &gathered);
	if (st && !mine)
		error_set(err, st, "%s", gathered.text);
	st = mine ? mine : st;
	for (int r = 0; !st && r < c->group->nranks; r++) {
		if (all[r].status)
			st = error_set(err, GRADCOMP_ERR_PEER, "load: rank %d could not load its state: %s",
			               c->group->ranks[r], gradcomp_strerror((gradcomp_status)all[r].status));
		else if (all[r].what != all[0].what)
			st = error_set(err, GRADCOMP_ERR_MISMATCH,
			               "load: rank %d loads a state of another step or decision than rank %d",
			               c->group->ranks[r], c->group->ranks[0]);
	}
	free(all);
	return st;
}

static void take_up(choice *c, loaded *l)
{
	const head *h = &l->h;
	int looks = h->last.phase <= CHOICE_MEASURE;
	parts *old = c->parts;
	float **owed = c->owed;
	c->parts = l->parts;
	l->parts = old;
	c->owed = l->owed;
	l->owed = owed;
	c->now.candidate = l->to.candidate;
	memcpy(c->now.of, l->to.of, c->ntensors);
	c->last = h->last;
	if (h->list != list_hash(c)) {
		memset(c->last.predicted, 0, sizeof c->last.predicted);
		memset(c->last.measured, 0, sizeof c->last.measured);
	}
	c->last.reason = CHOICE_LOADED;
	c->last.candidate = c->now.candidate;
	c->steps = c->changed_at = h->step;
	c->pulse.error = isfinite(h->error) && h->error >= 0 ? h->error : 0;
	uint32_t soon = h->settled ? c->wish.interval / 10 : c->wish.window + 1;
	if (c->group->nranks > 1)
		c->next_check = c->steps + (looks ? 2 : soon);
	if (c->group->me == 0)
		policy_resume(c, looks, c->steps + (h->settled ? c->wish.interval : soon));
	parts_resolve(c, c->parts);
	/* Of those that have been tried it must be known which are dense. */
	for (uint32_t k = 0; k < c->wish.n; k++)
		if (c->last.measured[k] > 0)
			choice_resolve(c->job->config, c->collective, &c->wish.candidate[k], NULL);
	choice_note(c, CHOICE_LOADED);
}

static uint64_t state_hash(const loaded *l, uint32_t n)
{
	uint64_t h = checksum_of(l->h.candidate, strlen(l->h.candidate), l->h.step);
	h = checksum_of(l->to.of, n, h);
	return id_mix(id_mix(h, l->h.last.phase), l->h.settled);
}

gradcomp_status choice_load(void *front, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	choice *c = front;
	const char *rest = NULL;
	loaded l = {.parts = NULL};
	gradcomp_error own = {0};
	pthread_mutex_lock(&c->lock);
	gradcomp_status st = settle(c, "load", &own);
	if (!st)
		st = read_state(c, buf, bytes, &l, &rest, &own);
	pthread_mutex_unlock(&c->lock);
	st = together(c, st, st ? 0 : state_hash(&l, c->ntensors), &own);
	if (!st)
		st = parts_make(c, &l.to, &l.parts, &own);
	if (!st) {
		st = load_parts(&l, rest, (const char *)buf + bytes, &own);
		st = together(c, st, 0, &own);
	}
	pthread_mutex_lock(&c->lock);
	if (!st)
		take_up(c, &l);
	pthread_mutex_unlock(&c->lock);
	parts_free(c, l.parts, 0);
	for (uint32_t i = 0; l.owed && i < c->ntensors; i++)
		free(l.owed[i]);
	free(l.owed);
	free(l.to.of);
	return st ? error_set(err, st, "%s", own.text) : GRADCOMP_OK;
}
