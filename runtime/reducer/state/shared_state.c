#include "reducer/state/shared_state.h"

#include "step/layout.h"
#include "reducer/state/state_check.h"
#include "step/server_error.h"

#include "base/error.h"
#include "job/consensus.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Numbers that go through the ranks' mean at a time. */
enum { RUN = 1 << 17 };

static uint64_t array_bytes(const reducer *r)
{
	return r->eng.layout.numel * sizeof(float);
}

/* Fills in all but the checksum. */
static void describe(const reducer *r, uint64_t plugin_bytes, shared_head *h)
{
	const bucketing d = bucketing_current(r);
	memset(h, 0, sizeof *h);
	h->step = r->eng.step;
	h->numel = r->eng.layout.numel;
	h->tensors = layout_hash(&r->eng.layout);
	h->plugin_bytes = plugin_bytes;
	h->has_error = engine_has_error(state_owner(r, &d));
	h->state_arrays = r->eng.compressor->state_arrays;
	h->nranks = (uint32_t)r->eng.layout.nranks;
	strncpy(h->compressor, r->eng.compressor_spec, sizeof h->compressor - 1);
}

/* Onto to[], which is of numbers [at, at + n), what of them is among the `held` ones that begin at `begin`. */
static void add_run(double *to, uint64_t at, uint64_t n, const float *from, uint64_t begin, uint64_t held)
{
	uint64_t first, common = bucket_overlap(at, n, begin, held, &first);
	for (uint64_t j = 0; j < common; j++)
		to[first - at + j] += (double)from[first - begin + j];
}

/* Makes what this rank adds to numbers [at, at + n) of array s: to[], in units of the sum. */
static gradcomp_status share(const reducer *r, uint32_t s, uint64_t at, uint64_t n, double *to, float *room,
                             gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	memset(to, 0, n * sizeof *to);
	for (const engine *k = r->eng.list.shards; k; k = k->next)
		for (uint32_t i = 0; !st && i < r->eng.list.nbuckets; i++) {
			const gradcomp_bucket *part = &k->list.buckets[i].pub;
			uint64_t first, begin = r->eng.list.buckets[i].pub.offset + k->list.buckets[i].begin;
			uint64_t common = bucket_overlap(at, n, begin, part->numel, &first);
			if (common)
				st = engine_read(k, s, part->offset + (first - begin), common, room, err);
			if (!st && common)
				add_run(to, at, n, room, first, common);
		}
	if (st || r->eng.list.shards)
		return st;
	const bool error = engine_has_error(&r->eng) && s == 0;
	st = engine_read(&r->eng, s, at, n, room, err);
	for (uint64_t i = 0; !st && i < n; i++)
		to[i] = (double)room[i];
	for (uint32_t i = 0; !st && error && i < r->eng.list.nbuckets; i++) {
		const bucket *b = &r->eng.list.buckets[i];
		if (b->server_error && b->nserver_error)
			add_run(to, at, n, b->server_error, server_error_offset(&r->eng, b), b->nserver_error);
	}
	return st;
}

/* to[] = the sums of all ranks over `holders`, the same bits on all. */
static gradcomp_status mean_of(gradcomp_group *g, double *sums, uint64_t n, double holders, float *to,
                               gradcomp_error *err)
{
	gradcomp_status st = group_allreduce(g, sums, n, GRADCOMP_F64, GRADCOMP_SUM, err);
	for (uint64_t i = 0; !st && i < n; i++)
		to[i] = (float)(sums[i] / holders);
	return st;
}

/* Puts down the mean over the holders of every number, the same on all ranks. What fails here after the ranks have
 * agreed ends the job. */
static gradcomp_status put_means(reducer *r, unsigned char *to, double *sums, float *room, gradcomp_error *err)
{
	const bucketing d = bucketing_current(r);
	const uint32_t arrays = engine_arrays_count(state_owner(r, &d));
	const uint64_t numel = r->eng.layout.numel;
	const double holders = state_owner(r, &d)->layout.nranks;
	for (uint32_t s = 0; s < arrays; s++)
		for (uint64_t at = 0, n; at < numel; at += n, to += n * sizeof *room) {
			n = numel - at < RUN ? numel - at : RUN;
			gradcomp_status st = share(r, s, at, n, sums, room, err);
			if (st)
				job_fail(r->eng.job, st, err->text);
			else
				st = mean_of(r->eng.group, sums, n, holders, room, err);
			if (st)
				return st;
			memcpy(to, room, n * sizeof *room);
		}
	return GRADCOMP_OK;
}

gradcomp_status shared_state_mean(gradcomp_group *g, float *x, uint64_t n, gradcomp_error *err)
{
	double *sums = malloc(RUN * sizeof *sums);
	gradcomp_status st = GRADCOMP_OK;
	if (!sums) {
		job_fail(g->job, GRADCOMP_ERR_NOMEM, "no memory for the means of a shared state");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the means of %d numbers", (int)RUN);
	}
	for (uint64_t at = 0, run; !st && at < n; at += run) {
		run = n - at < RUN ? n - at : RUN;
		for (uint64_t i = 0; i < run; i++)
			sums[i] = (double)x[at + i];
		st = mean_of(g, sums, run, g->nranks, x + at, err);
	}
	free(sums);
	return st;
}

/* Ranks must have this alike to save together. */
typedef struct saving {
	uint64_t step, bytes, plugin;
} saving;

static void differing_saves(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	saving a, b;
	memcpy(&a, claim, sizeof a);
	memcpy(&b, claim0, sizeof b);
	if (a.step != b.step)
		snprintf(out, capacity, "saves a shared state at step %llu, rank %d at step %llu",
		         (unsigned long long)a.step, first, (unsigned long long)b.step);
	else
		snprintf(out, capacity,
		         "keeps another state of the compressor's own than rank %d: there is none to share, save each "
		         "rank's (gradcomp_reducer_save)",
		         first);
}

/* Finds out all that this rank can by itself, its own plugin's bytes included. */
static gradcomp_status prepare(const reducer *r, uint64_t own, unsigned char *buf, uint64_t capacity, uint64_t bytes,
                               saving *s, gradcomp_error *err)
{
	uint64_t written = own;
	gradcomp_status st = GRADCOMP_OK;
	if (capacity < bytes)
		return error_set(err, GRADCOMP_ERR_INVALID, "save: the buffer has %llu bytes, the state takes %llu",
		                 (unsigned long long)capacity, (unsigned long long)bytes);
	const unsigned char *plugin = buf + (bytes - own);
	if (own)
		st = r->eng.compressor->save(r->eng.instance, buf + (bytes - own), own, &written, err);
	if (st)
		return st;
	for (uint64_t i = 0; i < own; i++)
		s->plugin = id_mix(s->plugin, plugin[i]);
	s->step = r->eng.step;
	s->bytes = bytes;
	return GRADCOMP_OK;
}

/* Finds the bytes of the plugin's own; none of an instance that works on this rank's shards. */
static gradcomp_status plugin_bytes(const reducer *r, uint64_t *own, gradcomp_error *err)
{
	*own = 0;
	return r->eng.instance && r->eng.compressor->save ? r->eng.compressor->save(r->eng.instance, NULL, 0, own, err)
	                                                  : GRADCOMP_OK;
}

gradcomp_status shared_state_save(reducer *r, unsigned char *buf, uint64_t capacity, uint64_t *bytes,
                                  gradcomp_error *err)
{
	gradcomp_error mine = {0};
	saving s = {0};
	shared_head h;
	uint64_t own = 0;
	double *sums = NULL;
	float *room = NULL;
	gradcomp_status st = run_step_between_steps(r, "save", &mine);
	if (!st && r->eng.list.server_error)
		st = server_error_check(&r->eng, &mine);
	if (!st)
		st = plugin_bytes(r, &own, &mine);
	if (!st) {
		describe(r, own, &h);
		*bytes = sizeof h + (h.has_error + h.state_arrays) * array_bytes(r) + own;
	}
	if (!buf)
		return st ? error_set(err, st, "%s", mine.text) : GRADCOMP_OK;
	if (!st)
		st = prepare(r, own, buf, capacity, *bytes, &s, &mine);
	if (!st) {
		sums = malloc(RUN * sizeof *sums);
		room = malloc(RUN * sizeof *room);
		if (!sums || !room)
			st = error_set(&mine, GRADCOMP_ERR_NOMEM, "no memory for the means of %d numbers", (int)RUN);
	}
	st = consensus(r->eng.group, &(consensus_topic){"save a shared state", &s, sizeof s, differing_saves, true}, st,
	               &mine);
	if (!st && sums && room)
		st = put_means(r, buf + sizeof h, sums, room, &mine);
	free(sums);
	free(room);
	if (st)
		return error_set(err, st, "%s", mine.text);
	memcpy(buf, &h, sizeof h);
	saved_seal(SAVED_SHARED, buf, *bytes);
	return GRADCOMP_OK;
}

gradcomp_status shared_state_check(const reducer *r, const void *state, uint64_t bytes, shared_head *h,
                                   gradcomp_error *err)
{
	shared_head want;
	memset(h, 0, sizeof *h);
	if (saved_kind_of(state, bytes) == SAVED_SHARED_AUTO)
		return error_set(err, GRADCOMP_ERR_MISMATCH, "load: the shared state is of auto, this reducer is '%s'",
		                 r->eng.compressor_spec);
	gradcomp_status st = saved_read(SAVED_SHARED, state, bytes, h, sizeof *h, err);
	h->compressor[sizeof h->compressor - 1] = 0;
	if (!st)
		st = state_check_model(r, "shared state", h->compressor, h->tensors, h->numel, err);
	if (st)
		return st;
	describe(r, h->plugin_bytes, &want);
	const uint64_t body = sizeof *h + (want.has_error + want.state_arrays) * array_bytes(r);
	if (h->has_error != want.has_error || h->state_arrays != want.state_arrays || bytes < body ||
	    h->plugin_bytes != bytes - body)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "load: the shared state has %llu bytes and should have %llu, and %llu of the "
		                 "compressor's own",
		                 (unsigned long long)bytes, (unsigned long long)body,
		                 (unsigned long long)h->plugin_bytes);
	st = state_check_bytes(r, SAVED_SHARED, state, bytes, h->plugin_bytes, err);
	return st ? st
	          : state_check_finite(r->eng.job->host.operators, "shared state", (const char *)state + sizeof *h,
	                               body - sizeof *h, err);
}

const void *shared_state_plugin(const reducer *r, const void *state, const shared_head *h)
{
	return h->plugin_bytes && r->eng.instance
	               ? (const char *)state + sizeof *h + (h->has_error + h->state_arrays) * array_bytes(r)
	               : NULL;
}

/* Copies what lies in this rank's shards of array s. */
static gradcomp_status take_shards(reducer *r, uint32_t s, const char *array, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (const engine *k = r->eng.list.shards; k; k = k->next)
		for (uint32_t i = 0; !st && i < r->eng.list.nbuckets; i++) {
			const gradcomp_bucket *part = &k->list.buckets[i].pub;
			if (part->numel)
				st = engine_write(k, s, part->offset, part->numel,
				                  array + (r->eng.list.buckets[i].pub.offset +
				                           k->list.buckets[i].begin) *
				                                  sizeof(float),
				                  err);
		}
	return st;
}

gradcomp_status shared_state_take(reducer *r, const void *state, const shared_head *h, gradcomp_error *err)
{
	const char *array = (const char *)state + sizeof *h;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t s = 0; !st && s < h->has_error + h->state_arrays; s++, array += array_bytes(r))
		if (r->eng.list.shards)
			st = take_shards(r, s, array, err);
		else
			st = engine_write(&r->eng, s, 0, r->eng.layout.numel, array, err);
	if (st)
		return st;
	if (r->eng.list.server_error)
		memset(r->eng.list.server_error, 0, r->eng.list.nserver_error * sizeof *r->eng.list.server_error);
	r->eng.step = h->step;
	engine_next_step(&r->eng);
	return GRADCOMP_OK;
}
