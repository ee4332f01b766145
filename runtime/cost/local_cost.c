#include "cost/local_cost.h"

#include "base/clock.h"
#include "base/error.h"
#include "schedule/task_list.h"

#include <stdlib.h>
#include <string.h>

enum { LATER = 1000000 }; /* a step past every warm-up */

static gradcomp_status check(const char *why, gradcomp_error *err)
{
	return device_check(why, "what a compressor computes", err);
}

/* Zeroes where it works. */
static void *take(const local_cost *l, uint64_t bytes, gradcomp_status *st, gradcomp_error *err)
{
	void *p = NULL;
	const char *why = "none";
	if (*st)
		return NULL;
	bytes += sizeof(float);
	if (!l->on)
		p = l->host->alloc(bytes);
	else if (!device_memory_take(l->on->memory, &p, bytes, l->on->stream))
		why = l->on->d->zero(l->on->stream, p, bytes);
	if (l->on ? why != NULL : !p)
		*st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time it with %llu bytes",
		                (unsigned long long)bytes);
	return p;
}

static void give_back(const local_cost *l, void *p)
{
	if (l->on)
		device_memory_give_back(l->on->memory, p);
	else
		l->host->release(p);
}

static gradcomp_status grow(const local_cost *l, struct local_room *r, uint64_t bytes, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (r->p && bytes <= r->bytes)
		return GRADCOMP_OK;
	if (l->on)
		device_drain(l->on->d, (void *const *)&l->on->stream, 1);
	give_back(l, r->p);
	r->p = take(l, bytes, &st, err);
	r->bytes = bytes;
	return st;
}

void local_cost_close(local_cost *l)
{
	if (l->on)
		device_drain(l->on->d, (void *const *)&l->on->stream, 1);
	if (l->instance)
		l->compressor->destroy(l->instance);
	for (uint32_t i = 0; l->state && i < l->compressor->state_arrays; i++)
		give_back(l, l->state[i]);
	free(l->state);
	give_back(l, l->x);
	give_back(l, l->error);
	give_back(l, l->scratch.p);
	give_back(l, l->payload.p);
	give_back(l, l->merged.p);
	give_back(l, l->words);
	for (int k = 0; l->on && k < LOCAL_MARKS; k++)
		l->on->d->event_free(l->marks[k]);
}

gradcomp_status local_cost_open(local_cost *l, const gradcomp_host *host, const local_device *on,
                                const struct gradcomp_compressor_v1 *c, const gradcomp_value *values, uint64_t rows,
                                uint64_t columns, uint32_t patterns, int parts, gradcomp_error *err)
{
	const uint64_t n = rows * columns;
	gradcomp_status st = GRADCOMP_OK;
	*l = (local_cost){.compressor = c,
	                  .on = on,
	                  .host = host,
	                  .dims = {rows, columns},
	                  .step = LATER,
	                  .keeps_error = gradcomp_keeps_error(c, values),
	                  .parts = parts};
	l->tensor = (gradcomp_tensor){.name = "gradient", .numel = n, .dims = l->dims, .ndim = 2};
	l->layout = (gradcomp_layout){.struct_size = sizeof l->layout,
	                              .ntensors = 1,
	                              .tensors = &l->tensor,
	                              .numel = n,
	                              .nranks = parts,
	                              .seed = 1,
	                              .patterns = patterns,
	                              .device = on ? GRADCOMP_CUDA : GRADCOMP_HOST};
	l->bucket = (gradcomp_bucket){.struct_size = sizeof l->bucket, .ntensors = 1, .numel = n};
	l->x = take(l, n * sizeof *l->x, &st, err);
	l->error = take(l, n * sizeof *l->error, &st, err);
	l->state = calloc(c->state_arrays + 1, sizeof *l->state);
	if (!st && !l->state)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time it");
	for (uint32_t i = 0; !st && i < c->state_arrays; i++)
		l->state[i] = take(l, n * sizeof **l->state, &st, err);
	if (on)
		l->words = take(l, 2 * sizeof *l->words, &st, err);
	for (int k = 0; on && !st && k < LOCAL_MARKS; k++)
		st = check(on->d->timer(&l->marks[k]), err);
	if (!st)
		st = c->create(host, values, &l->layout, &l->instance, err);
	if (!st && on && patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED))
		st = c->code_on(l->instance, on->ops, on->stream, l->words, err);
	if (st)
		local_cost_close(l);
	return st;
}

/* Notes the time, or a place on the stream. */
static gradcomp_status mark(local_cost *l, int k, gradcomp_error *err)
{
	l->at[k] = clock_now();
	return l->on ? check(l->on->d->record(l->marks[k], l->on->stream), err) : GRADCOMP_OK;
}

/* Adds what was between a mark and the next one, for which it waits. */
static gradcomp_status add_between(local_cost *l, int from, double *seconds, gradcomp_error *err)
{
	double took = l->at[from + 1] - l->at[from];
	const char *why = l->on ? l->on->d->wait(l->marks[from + 1]) : NULL;
	if (l->on && !why)
		why = l->on->d->elapsed(l->marks[from], l->marks[from + 1], &took);
	*seconds += took;
	return check(why, err);
}

static gradcomp_status piece(local_cost *l, const gradcomp_work *w, uint64_t at, uint64_t n, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = l->compressor;
	float *x = l->x + at, *e = l->error + at;
	uint64_t bytes = 0;
	gradcomp_status st = mark(l, 0, err);
	if (!st)
		st = c->code(l->instance, x, n, at, l->payload.p, &bytes, err);
	if (!st)
		st = mark(l, 1, err);
	if (!st)
		st = c->code_decode(l->instance, l->payload.p, bytes, e, n, err);
	w->operators->scale(w->queue, e, -1, n);
	w->operators->add(w->queue, e, x, n);
	if (!st)
		st = mark(l, 2, err);
	/* Onto what a neighbour would have there. */
	if (!st)
		st = c->code_decode_add(l->instance, l->payload.p, bytes, x, n, err);
	if (!st)
		st = mark(l, 3, err);
	if (!st)
		st = add_between(l, 0, &l->encode, err);
	if (!st)
		st = add_between(l, 1, &l->lost, err);
	l->bytes += bytes;
	return st ? st : add_between(l, 2, &l->decode, err);
}

static gradcomp_status coded(local_cost *l, const gradcomp_work *w, gradcomp_error *err)
{
	const uint64_t n = l->bucket.numel;
	gradcomp_status st = grow(l, &l->payload, l->compressor->code_bound(l->instance, LOCAL_PIECE), err);
	for (uint64_t at = 0; !st && at < n; at += LOCAL_PIECE)
		st = piece(l, w, at, n - at < LOCAL_PIECE ? n - at : LOCAL_PIECE, err);
	return st;
}

/* in[]: the payloads that are decoded, in[0] this rank's. On the host the others are copies, so that each is read
 * from a place of its own. */
static void gathered(const local_cost *l, gradcomp_payload *in, uint64_t stride)
{
	for (int r = 1; r < l->parts; r++) {
		in[r] = in[0];
		if (l->on || in[0].data != l->payload.p)
			continue;
		in[r].data = (char *)l->payload.p + (uint64_t)r * stride;
		memcpy(in[r].data, in[0].data, in[0].bytes);
	}
}

static gradcomp_status one_round(local_cost *l, const gradcomp_work *w, uint32_t k, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = l->compressor;
	const gradcomp_round *rd = &l->plan.rounds[k];
	const bool all = rd->pattern == GRADCOMP_GATHERED, merges = rd->pattern == GRADCOMP_MERGED && l->parts > 1;
	const uint64_t want = task_round_bytes(rd), stride = (want + 15) & ~(uint64_t)7;
	gradcomp_status st = grow(l, &l->payload, all && !l->on ? (uint64_t)l->parts * stride : stride, err);
	if (!st && merges)
		st = grow(l, &l->merged, want, err);
	gradcomp_payload in[LOCAL_PARTS] = {{l->payload.p, want, want}};
	if (!st)
		st = mark(l, 0, err);
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE)
		in[0].data = l->x;
	else if (!st)
		st = c->encode(l->instance, w, k, &in[0], err);
	if (!st)
		st = mark(l, 1, err);
	l->bytes += in[0].bytes;
	if (!st && all)
		gathered(l, in, stride);
	if (!st)
		st = mark(l, 2, err);
	if (!st && merges) {
		gradcomp_payload out = {l->merged.p, want, want};
		st = c->merge(l->instance, w, k, &in[0], &in[0], &out, err);
	}
	if (!st && c->decode)
		st = c->decode(l->instance, w, k, in, all ? (uint32_t)l->parts : 1, err);
	if (!st)
		st = mark(l, 3, err);
	if (!st)
		st = add_between(l, 0, &l->encode, err);
	return st ? st : add_between(l, 2, &l->decode, err);
}

static gradcomp_status fill(local_cost *l, const gradcomp_work *w, const float *u, gradcomp_error *err)
{
	const uint64_t n = l->bucket.numel;
	if (!u)
		w->operators->random_normal(w->queue, l->x, n, 1, l->step, 0);
	else if (l->on)
		return check(l->on->d->copy(l->on->stream, l->x, u, n * sizeof *u), err);
	else
		memcpy(l->x, u, n * sizeof *u);
	return GRADCOMP_OK;
}

gradcomp_status local_cost_step(local_cost *l, const float *u, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = l->compressor;
	int fault[2] = {0};
	l->encode = l->lost = l->decode = 0;
	l->bytes = 0;
	l->plan = (gradcomp_plan){.struct_size = sizeof l->plan};
	gradcomp_status st = c->plan(l->instance, &l->bucket, l->step, &l->plan, err);
	if (!st)
		st = task_list_check_plan(c, l->layout.patterns ? l->layout.patterns : c->patterns, l->bucket.numel,
		                          &l->plan, err);
	if (!st)
		st = grow(l, &l->scratch, l->plan.scratch_bytes, err);
	if (st)
		return st;
	gradcomp_work w = {.struct_size = sizeof w,
	                   .bucket = &l->bucket,
	                   .step = l->step++,
	                   .x = &l->x,
	                   .flat = l->x,
	                   .error = l->keeps_error ? &l->error : NULL,
	                   .error_flat = l->keeps_error ? l->error : NULL,
	                   .state = l->state,
	                   .scratch = l->scratch.p,
	                   .scratch_bytes = l->plan.scratch_bytes,
	                   .operators_v1 = l->host->operators_v1,
	                   .operators = l->on ? l->on->ops : l->host->operators,
	                   .fault = l->on ? l->words : fault};
	if (l->on) {
		w.device = GRADCOMP_CUDA;
		w.queue = l->on->stream;
	}
	st = fill(l, &w, u, err);
	if (!st && l->plan.rounds[0].pattern == GRADCOMP_CODED)
		st = coded(l, &w, err);
	else
		for (uint32_t k = 0; !st && k < l->plan.nrounds; k++)
			st = one_round(l, &w, k, err);
	const char *why = l->on ? l->on->ops->failed() : NULL;
	return st || !why ? st : check(why, err);
}
