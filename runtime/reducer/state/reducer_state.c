/* Describes what a saved state belongs to. A wrong or damaged one is refused before anything changes. */
#include "reducer/state/reducer_state.h"

#include "reducer/bucketing/replan.h"
#include "step/layout.h"
#include "step/server_error.h"
#include "reducer/state/shared_state.h"

#include "base/error.h"
#include "job/consensus.h"
#include "reducer/reducer_ops.h"

#include <stdio.h>
#include <string.h>
#include <stdlib.h>

#define OLDEST '2' /* without a plan */

static uint64_t kept(const reducer *r, const bucketing *d)
{
	uint64_t n = 0;
	for (const engine *k = state_owner(r, d); k; k = k->next)
		n += k->layout.numel;
	return n;
}

/* Returns the bytes of the arrays and the collective's memory. */
static uint64_t state_array_bytes(const reducer *r, const bucketing *d)
{
	const engine *k = state_owner(r, d);
	return ((uint64_t)engine_arrays_count(k) * kept(r, d) + d->list.nserver_error) * sizeof(float);
}

/* Which numbers of buckets shards and the collective's memory are. */
static uint64_t held_hash(const bucketing *d)
{
	uint64_t h = 0;
	for (uint32_t i = 0; (d->list.shards || d->list.nserver_error) && i < d->list.nbuckets; i++) {
		h = id_mix(h, d->list.buckets[i].pub.numel);
		if (!d->list.shards)
			h = id_mix(h, 1);
		for (const bucket *part = d->list.buckets[i].part; part; part = part->beside)
			h = id_mix(h, part->begin);
	}
	return h;
}

/* Fills in all but the checksum. */
static void state_describe(const reducer *r, const bucketing *d, uint64_t plugin_bytes, state_head *h)
{
	memset(h, 0, sizeof *h);
	h->step = r->eng.step;
	h->numel = r->eng.layout.numel;
	h->tensors = layout_hash(&r->eng.layout);
	h->plugin_bytes = plugin_bytes;
	h->has_error = engine_has_error(state_owner(r, d));
	h->state_arrays = r->eng.compressor->state_arrays;
	h->rank = (uint32_t)r->eng.layout.rank;
	h->nranks = (uint32_t)r->eng.layout.nranks;
	h->kept = kept(r, d);
	h->nserver_error = d->list.nserver_error;
	h->held_hash = held_hash(d);
	strncpy(h->compressor, r->eng.compressor_spec, sizeof h->compressor - 1);
	h->nbuckets = d->list.nbuckets;
	h->lag = d->schedule.lag;
	h->settled = (uint32_t)replan_settled(r);
}

/* Checks that this is a whole state of this rank of such a reducer, of whatever plan. *body: where the plan begins. */
static gradcomp_status state_check(const reducer *r, const void *state, uint64_t bytes, state_head *h, uint64_t *body,
                                   gradcomp_error *err)
{
	const bucketing now = bucketing_current(r);
	state_head want;
	memset(h, 0, sizeof *h);
	*body = offsetof(state_head, nbuckets);
	gradcomp_status st = saved_read(SAVED_REDUCER, state, bytes, h, *body, err);
	h->compressor[sizeof h->compressor - 1] = 0;
	if (!st)
		st = state_check_model(r, "state", h->compressor, h->tensors, h->numel, err);
	if (st)
		return st;
	state_describe(r, &now, h->plugin_bytes, &want);
	if (h->rank != want.rank || h->nranks != want.nranks)
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"load: the state is of rank %u of %u, this is rank %u of %u; other ranks load a shared one "
			"(gradcomp_reducer_save_shared(); in Python state_dict(shared=True))",
			h->rank, h->nranks, want.rank, want.nranks);
	if (h->saved.version > OLDEST) {
		st = saved_read(SAVED_REDUCER, state, bytes, h, sizeof *h, err);
		*body = sizeof *h;
		if (st)
			return st;
	}
	return state_check_bytes(r, SAVED_REDUCER, state, bytes, h->plugin_bytes, err);
}

/* Checks that it is one of the bucketing *d, which was made from its plan; `body` is where its arrays begin. */
static gradcomp_status state_fits(const reducer *r, const bucketing *d, const state_head *h, uint64_t body,
                                  uint64_t bytes, gradcomp_error *err)
{
	const uint64_t arrays = state_array_bytes(r, d);
	state_head want;
	state_describe(r, d, h->plugin_bytes, &want);
	if (h->kept != want.kept || h->nserver_error != want.nserver_error || h->held_hash != want.held_hash)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "load: the state keeps %llu numbers of this rank's and %llu of its collective, "
		                 "this reducer %llu "
		                 "and %llu%s: it was saved with another collective, other nodes%s",
		                 (unsigned long long)h->kept, (unsigned long long)h->nserver_error,
		                 (unsigned long long)want.kept, (unsigned long long)want.nserver_error,
		                 h->kept == want.kept ? ", of other numbers" : "",
		                 h->saved.version > OLDEST
		                         ? ""
		                         : " or other buckets, of which a state of version 2 does "
		                           "not tell: make the reducer with the bucket_bytes it was saved with");
	if (h->has_error != want.has_error || h->state_arrays != want.state_arrays || h->plugin_bytes > bytes ||
	    body + arrays + h->plugin_bytes != bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state has %llu bytes and should have %llu",
		                 (unsigned long long)bytes,
		                 (unsigned long long)(body + arrays + (h->plugin_bytes > bytes ? 0 : h->plugin_bytes)));
	return GRADCOMP_OK;
}

/* Saving and loading a reducer's state; state.h says what is in it.
 *
 * A state brings its plan along: a job that is resumed goes on with the buckets and the order
 * it had, hence to the bit. Ranks load together, each its own state of the same step, or all
 * the same shared one (shared_state.h): what can be refused is looked at before the ranks agree,
 * and nothing but the compressor's own state is changed until then, which can be put back. */

static unsigned char *put_words(unsigned char *p, const uint32_t *words, uint32_t n)
{
	memcpy(p, words, n * sizeof *words);
	return p + n * sizeof *words;
}

/* Writes the arrays and the collective's memory, state_array_bytes() of them. */
static gradcomp_status put_arrays(const reducer *r, const bucketing *d, unsigned char *p, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (const engine *k = state_owner(r, d); k; k = k->next) {
		size_t bytes = k->layout.numel * sizeof(float);
		for (uint32_t s = 0; !st && s < engine_arrays_count(k); s++, p += bytes)
			st = engine_read(k, s, 0, k->layout.numel, p, err);
	}
	if (!st && d->list.nserver_error)
		memcpy(p, d->list.server_error, d->list.nserver_error * sizeof(float));
	return st;
}

static gradcomp_status take_arrays(const reducer *r, const bucketing *d, const unsigned char *p, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (const engine *k = state_owner(r, d); k; k = k->next) {
		size_t bytes = k->layout.numel * sizeof(float);
		for (uint32_t s = 0; !st && s < engine_arrays_count(k); s++, p += bytes)
			st = engine_write(k, s, 0, k->layout.numel, p, err);
	}
	if (!st && d->list.nserver_error)
		memcpy(d->list.server_error, p, d->list.nserver_error * sizeof(float));
	return st;
}

/* Writes what the compressor keeps of its own: *bytes of it, into buf unless that is NULL. The state of each of
 * several shards stands behind its length. */
static gradcomp_status put_plugin(const reducer *r, const bucketing *d, unsigned char *buf, uint64_t *bytes,
                                  gradcomp_error *err)
{
	const bool several = d->list.shards && d->list.shards->next;
	const uint64_t capacity = *bytes;
	gradcomp_status st = GRADCOMP_OK;
	*bytes = 0;
	for (const engine *k = state_owner(r, d); !st && k && r->eng.compressor->save; k = k->next) {
		uint64_t head = several ? sizeof(uint64_t) : 0, own = 0;
		if (k->instance)
			st = r->eng.compressor->save(k->instance, NULL, 0, &own, err);
		if (!st && buf && head + own > capacity - *bytes)
			return error_set(err, GRADCOMP_ERR_INTERNAL, "save: the state of '%s' grew while it was saved",
			                 r->eng.compressor->info.name);
		if (!st && buf && several)
			memcpy(buf + *bytes, &own, sizeof own);
		if (!st && buf && own)
			st = r->eng.compressor->save(k->instance, buf + *bytes + head, own, &own, err);
		*bytes += head + own;
	}
	return st;
}

/* Reads what put_plugin() has put for several shards, into instances that nobody uses yet. */
static gradcomp_status take_plugin(const reducer *r, const bucketing *d, const unsigned char *p, uint64_t bytes,
                                   gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (const engine *k = state_owner(r, d); !st && k; k = k->next) {
		uint64_t own = 0;
		if (bytes >= sizeof own)
			memcpy(&own, p, sizeof own);
		if (bytes < sizeof own || own > bytes - sizeof own)
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "load: the state of '%s' for several shards is cut short",
			                 r->eng.compressor->info.name);
		p += sizeof own;
		bytes -= sizeof own + own;
		if (k->instance)
			st = r->eng.compressor->load(k->instance, p, own, err);
		p += own;
	}
	return st;
}

/* Called with the lock held. */
static gradcomp_status save(reducer *r, unsigned char *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	const bucketing d = bucketing_current(r);
	uint64_t own = 0, words = 2 * (uint64_t)d.list.nbuckets * sizeof(uint32_t);
	step_plan plan = {0};
	state_head h;
	gradcomp_status st = run_step_between_steps(r, "save", err);
	if (!st)
		st = put_plugin(r, &d, NULL, &own, err);
	if (st)
		return st;
	*bytes = sizeof h + words + state_array_bytes(r, &d) + own;
	if (!buf)
		return GRADCOMP_OK;
	if (capacity < *bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		                 (unsigned long long)capacity, (unsigned long long)*bytes);
	st = bucketing_plan(r, &plan, err);
	if (st)
		return st;
	state_describe(r, &d, own, &h);
	unsigned char *p = put_words(buf + sizeof h, plan.end, plan.nbuckets);
	p = put_words(p, plan.position, plan.nbuckets);
	step_plan_clear(&plan);
	st = put_arrays(r, &d, p, err);
	if (!st && own)
		st = put_plugin(r, &d, p + state_array_bytes(r, &d), &own, err);
	memcpy(buf, &h, sizeof h);
	saved_seal(SAVED_REDUCER, buf, *bytes);
	return st;
}

static gradcomp_status save_settled(gradcomp_reducer *base,
                                    gradcomp_status (*put)(reducer *, unsigned char *, uint64_t, uint64_t *,
                                                           gradcomp_error *),
                                    void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	reducer *r = reducer_of(base);
	pthread_mutex_lock(&r->lock);
	run_step_replan_settle(r);
	gradcomp_status st = put(r, buf, capacity, bytes, err);
	pthread_mutex_unlock(&r->lock);
	return st;
}

gradcomp_status reducer_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes, gradcomp_error *err)
{
	return save_settled(base, save, buf, capacity, bytes, err);
}

gradcomp_status reducer_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                    gradcomp_error *err)
{
	return save_settled(base, shared_state_save, buf, capacity, bytes, err);
}

/* The state's plan, or of one that has none that in force. */
static gradcomp_status plan_of(const reducer *r, const state_head *h, const unsigned char *state, uint64_t *body,
                               uint64_t bytes, step_plan *out, gradcomp_error *err)
{
	size_t n = h->nbuckets * sizeof(uint32_t);
	gradcomp_status st;
	if (*body < sizeof *h)
		return bucketing_plan(r, out, err);
	if (h->nbuckets > r->eng.layout.ntensors || 2 * n > bytes - *body)
		return error_set(err, GRADCOMP_ERR_INVALID, "load: the state has a plan of %u buckets for %u tensors",
		                 h->nbuckets, r->eng.layout.ntensors);
	*out = (step_plan){.nbuckets = h->nbuckets, .lag = h->lag, .end = malloc(n + 1), .position = malloc(n + 1)};
	if (!out->end || !out->position)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %u buckets", h->nbuckets);
	memcpy(out->end, state + *body, n);
	memcpy(out->position, state + *body + n, n);
	*body += 2 * n;
	gradcomp_error why = {0};
	st = bucketing_check(r, out, &why);
	return st ? error_set(err, st, "load: the state's plan is none of this reducer: %.300s", why.text)
	          : GRADCOMP_OK;
}

/* Holds what a rank is about to take up. */
typedef struct loading {
	const unsigned char *state;
	uint64_t bytes;
	bool shared;
	shared_head one;
	/* These are for a rank's own state: where its arrays begin, and what it makes of the reducer. */
	state_head own;
	uint64_t body;
	bucketing d;
	step_plan plan;
	/* The compressor's own state before, when it has taken up another. */
	void *before;
	uint64_t nbefore;
} loading;

/* Into an instance that the reducer goes on with either way. */
static gradcomp_status plugin_load(reducer *r, loading *l, const void *in, uint64_t n, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = r->eng.compressor;
	if (!c->save)
		return c->load(r->eng.instance, in, n, err);
	gradcomp_status st = c->save(r->eng.instance, NULL, 0, &l->nbefore, err);
	if (st)
		return st;
	l->before = malloc(l->nbefore + 1);
	if (!l->before)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu bytes of the state of '%s'",
		                 (unsigned long long)l->nbefore, c->info.name);
	st = c->save(r->eng.instance, l->before, l->nbefore, &l->nbefore, err);
	if (st) {
		free(l->before);
		l->before = NULL;
	}
	return st ? st : c->load(r->eng.instance, in, n, err);
}

static gradcomp_status prepare_own(reducer *r, loading *l, gradcomp_error *err)
{
	gradcomp_status st = state_check(r, l->state, l->bytes, &l->own, &l->body, err);
	if (!st)
		st = plan_of(r, &l->own, l->state, &l->body, l->bytes, &l->plan, err);
	if (!st)
		st = bucketing_make(r, &l->plan, &l->d, err);
	if (!st)
		st = server_error_make(&r->eng, &l->d.list, err);
	if (!st)
		st = state_fits(r, &l->d, &l->own, l->body, l->bytes, err);
	if (!st)
		st = state_check_finite(r->eng.job->host.operators, "state", l->state + l->body,
		                        state_array_bytes(r, &l->d), err);
	if (st)
		return st;
	const engine *k = state_owner(r, &l->d);
	const void *plugin = l->state + l->body + state_array_bytes(r, &l->d);
	if (!k->instance || !r->eng.compressor->load)
		return GRADCOMP_OK;
	if (l->d.list.shards && l->d.list.shards->next)
		return take_plugin(r, &l->d, plugin, l->own.plugin_bytes, err);
	return k->instance == r->eng.instance ? plugin_load(r, l, plugin, l->own.plugin_bytes, err)
	                                      : r->eng.compressor->load(k->instance, plugin, l->own.plugin_bytes, err);
}

static gradcomp_status prepare(reducer *r, loading *l, gradcomp_error *err)
{
	gradcomp_status st = run_step_between_steps(r, "load", err);
	l->shared = saved_is_shared(l->state, l->bytes);
	if (st)
		return st;
	if (!l->shared)
		return prepare_own(r, l, err);
	st = shared_state_check(r, l->state, l->bytes, &l->one, err);
	const void *plugin = st ? NULL : shared_state_plugin(r, l->state, &l->one);
	return plugin ? plugin_load(r, l, plugin, l->one.plugin_bytes, err) : st;
}

/* Ranks say this to each other of it. */
typedef struct load_claim {
	uint64_t shared, step, checksum;
	uint64_t own; /* checksum of the compressor's own state, where that is alike on all ranks */
} load_claim;

static void differing_loads(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	load_claim a, b;
	memcpy(&a, claim, sizeof a);
	memcpy(&b, claim0, sizeof b);
	if (a.shared != b.shared)
		snprintf(out, capacity,
		         "loads a state %s, rank %d one %s: either all ranks load a shared one, or each its own",
		         a.shared ? "that ranks share" : "of its own", first,
		         b.shared ? "that ranks share" : "of its own");
	else if (a.step != b.step)
		snprintf(out, capacity, "loads a state of step %llu, rank %d one of step %llu",
		         (unsigned long long)a.step, first, (unsigned long long)b.step);
	else if (a.own != b.own)
		snprintf(out, capacity,
		         "loads another own state of the compressor than rank %d: all ranks have the same in one run",
		         first);
	else
		snprintf(out, capacity, "loads another shared state than rank %d", first);
}

static gradcomp_status agree(const reducer *r, const loading *l, gradcomp_status mine, gradcomp_error *err)
{
	load_claim c = {l->shared, l->shared ? l->one.step : l->own.step, l->shared ? l->one.saved.checksum : 0, 0};
	if (!mine && !l->shared && !l->d.list.shards && r->eng.compressor->traits & GRADCOMP_TRAIT_ALIKE)
		c.own = saved_hash(l->state + l->body + state_array_bytes(r, &l->d), l->own.plugin_bytes);
	return consensus(r->eng.group, &(consensus_topic){"load its state", &c, sizeof c, differing_loads, true}, mine,
	                 err);
}

/* Checks that all holders of a shard load that own state. */
static gradcomp_status same_of_holders(const engine *k, uint64_t hash, gradcomp_status *mine, gradcomp_error *err)
{
	const int P = k->layout.nranks, me = k->layout.rank;
	uint64_t *all = calloc(2 * (size_t)P, sizeof *all);
	gradcomp_status st;
	if (!all)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what %d holders of a shard load", P);
	all[me] = hash;
	for (int p = 0; p < P; p++)
		all[P + p] = sizeof *all;
	st = k->coll_ctx.collective->allgather(k->coll_ctx.instance, all, all + P, err);
	for (int p = 0; !st && !*mine && p < P; p++)
		if (all[p] != hash)
			*mine = error_set(err, GRADCOMP_ERR_MISMATCH,
			                  "it has another own state of the compressor than rank %d, which holds the "
			                  "same shard: they have the same in one run",
			                  k->group->ranks[p]);
	free(all);
	return st;
}

/* Compares the states of shards, when each rank has one that fits: only holders of the same one can be alike. */
static gradcomp_status agree_on_shards(reducer *r, const loading *l, gradcomp_error *err)
{
	const engine *first = l->d.list.shards;
	const bool several = first && first->next;
	const unsigned char *p = l->state + l->body + state_array_bytes(r, &l->d);
	gradcomp_status st = GRADCOMP_OK, mine = GRADCOMP_OK;
	if (!first || !(r->eng.compressor->traits & GRADCOMP_TRAIT_ALIKE) || !r->eng.compressor->load)
		return GRADCOMP_OK;
	for (const engine *k = first; !st && k; k = k->next) {
		uint64_t own = l->own.plugin_bytes;
		if (several) {
			memcpy(&own, p, sizeof own);
			p += sizeof own;
		}
		if (k->layout.rank >= 0)
			st = same_of_holders(k, saved_hash(p, own), &mine, err);
		p += own;
	}
	return st ? st
	          : consensus(r->eng.group, &(consensus_topic){.what = "load its state", .same_status = true}, mine,
	                      err);
}

/* Called with the lock held. l->d is what the state makes of the reducer, and afterwards what was. */
static gradcomp_status take_up(reducer *r, loading *l, gradcomp_error *err)
{
	gradcomp_status st;
	if (l->shared)
		return shared_state_take(r, l->state, &l->one, err);
	st = take_arrays(r, &l->d, l->state + l->body, err);
	if (st)
		return st;
	r->eng.ways.levels->carry(&r->eng, &l->d.list);
	bucketing_swap(r, &l->d);
	r->eng.step = l->own.step;
	replan_loaded(r, l->own.settled != 0);
	engine_next_step(&r->eng);
	return GRADCOMP_OK;
}

gradcomp_status reducer_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	reducer *r = reducer_of(base);
	loading l = {.state = buf, .bytes = bytes};
	gradcomp_error why = {0};
	pthread_mutex_lock(&r->lock);
	run_step_replan_settle(r);
	gradcomp_status st = prepare(r, &l, &why);
	st = agree(r, &l, st, &why);
	if (!st && !l.shared)
		st = agree_on_shards(r, &l, &why);
	if (st && l.before)
		r->eng.compressor->load(r->eng.instance, l.before, l.nbefore, NULL);
	if (!st) {
		if (r->eng.arrays.undo) {
			st = engine_keep_all(&r->eng, l.before, l.nbefore, &why);
			l.before = NULL;
		}
		st = st ? st : take_up(r, &l, &why);
		if (st)
			job_fail(r->eng.job, st, why.text);
	}
	pthread_mutex_unlock(&r->lock);
	bucketing_free(&l.d);
	step_plan_clear(&l.plan);
	free(l.before);
	return st ? error_set(err, st, "%s", why.text) : GRADCOMP_OK;
}
