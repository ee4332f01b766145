/* Coded reduce-scatter and all-gather for programs (gradcomp/coder.h): making a coder, and the queue
 * of its calls. */
#include "coder/coder_gpu.h"

#include "base/error.h"
#include "base/thread.h"
#include "job/consensus.h"
#include "trace/trace.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define WATCH_MS 5

static void record(gradcomp_coder *c, trace_what what, uint64_t call, uint32_t slot, double start, uint64_t bytes)
{
	if (c->trace)
		trace_add(c->trace, &(trace_event){.start = start,
		                                   .end = clock_now(),
		                                   .step = call,
		                                   .bytes = bytes,
		                                   .index = slot,
		                                   .reducer = c->trace_id,
		                                   .what = (uint8_t)what});
}

/* Called with the lock held. */
static void count(gradcomp_coder_stats *s, const gradcomp_coder_stats *took)
{
	s->reduce_scatters += took->reduce_scatters;
	s->all_gathers += took->all_gathers;
	s->nonfinite += took->nonfinite;
	s->dense_bytes += took->dense_bytes;
	s->convert_s += took->convert_s;
	s->exchange_s += took->exchange_s;
}

static gradcomp_status carry_out(gradcomp_coder *c, const gradcomp_coder_request *q, uint64_t call,
                                 gradcomp_coder_stats *took, gradcomp_error *err)
{
	double start = clock_now();
	uint64_t sent = channel_sent(c->coll_ctx.channel);
	gradcomp_status st = transport_failure(c->job->transport, err);
	if (!st) {
		st = coder_call(c, q, call, took, err);
		/* The others must not wait for this rank. */
		if (st)
			job_fail(c->job, st, err->text);
	}
	/* A device's times are learned later. */
	if (!c->gpu)
		record(c, q->kind == CODER_REDUCE_SCATTER ? TRACE_REDUCE_SCATTER : TRACE_ALL_GATHER, call,
		       q->slot_number, start, channel_sent(c->coll_ctx.channel) - sent);
	return st;
}

/* Waits, with the lock held, until there is a call, or the coder ends. What is on a device is looked after
 * meanwhile: a stream whose peer has died comes to an end only then. */
static void await_call(gradcomp_coder *c)
{
	bool busy = c->gpu;
	gradcomp_error err = {0};
	while (!c->first && (!c->stopping || busy)) {
		gradcomp_status st = busy ? coder_gpu_watch(c, &busy, &err) : GRADCOMP_OK;
		if (st)
			job_fail(c->job, st, err.text);
		if (busy)
			thread_wait(&c->wake, &c->lock, c->stopping ? 1 : WATCH_MS);
		else if (!c->stopping)
			pthread_cond_wait(&c->wake, &c->lock);
	}
}

static void *work(void *arg)
{
	gradcomp_coder *c = arg;
	if (c->gpu)
		coder_gpu_bind(c);
	pthread_mutex_lock(&c->lock);
	for (;;) {
		await_call(c);
		gradcomp_coder_request *q = c->first;
		if (!q)
			break;
		c->first = q->next;
		if (!c->first)
			c->last = &c->first;
		uint64_t call = c->calls++;
		pthread_mutex_unlock(&c->lock);
		gradcomp_coder_stats took = {0};
		gradcomp_error err = {0};
		gradcomp_status st = carry_out(c, q, call, &took, &err);
		pthread_mutex_lock(&c->lock);
		count(&c->stats, &took);
		q->status = st;
		q->error = err;
		q->done = true;
		c->inflight--;
		pthread_cond_broadcast(&c->ended);
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

coder_slot *coder_slot_make(uint32_t number, const uint64_t *counts, int nranks, uint64_t total,
                            const device_memory *memory)
{
	size_t bytes = (size_t)nranks * sizeof *counts;
	coder_slot *s = calloc(1, sizeof *s + bytes);
	if (s && !memory)
		s->e = calloc(total + 1, sizeof *s->e);
	if (!s || (!memory && !s->e)) {
		free(s);
		return NULL;
	}
	s->memory = memory;
	s->number = number;
	s->total = total;
	memcpy(s->counts, counts, bytes);
	return s;
}

void coder_slot_free(coder_slot *s)
{
	if (s->memory)
		device_memory_give_back(s->memory, s->e);
	else
		free(s->e);
	free(s);
}

void coder_slots_free(coder_slot **slots, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		coder_slot_free(slots[i]);
	free(slots);
}

/* Returns the place of the first slot whose number is not less. */
static uint32_t place_of(const gradcomp_coder *c, uint32_t number)
{
	uint32_t low = 0, high = c->nslots;
	while (low < high) {
		uint32_t middle = low + (high - low) / 2;
		if (c->slots[middle]->number < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

coder_slot *coder_slot_find(const gradcomp_coder *c, uint32_t number)
{
	const uint32_t at = place_of(c, number);
	return at < c->nslots && c->slots[at]->number == number ? c->slots[at] : NULL;
}

gradcomp_status coder_slot_put(gradcomp_coder *c, uint32_t number, uint64_t total, coder_slot *s, gradcomp_error *err)
{
	const uint32_t at = place_of(c, number);
	coder_slot **more = s ? realloc(c->slots, ((size_t)c->nslots + 1) * sizeof *more) : NULL;
	if (!more) {
		if (s)
			coder_slot_free(s);
		return error_set(err, GRADCOMP_ERR_NOMEM, "coder '%s': no memory for the %llu numbers of slot %u",
		                 c->name, (unsigned long long)total, number);
	}
	c->slots = more;
	c->stats.residual_bytes += total * sizeof(float);
	if (at < c->nslots && more[at]->number == number) {
		c->stats.residual_bytes -= more[at]->total * sizeof(float);
		coder_slot_free(more[at]);
	} else {
		memmove(more + at + 1, more + at, (c->nslots - at) * sizeof *more);
		c->nslots++;
		c->stats.slots++;
	}
	more[at] = s;
	return GRADCOMP_OK;
}

/* Finds, with the lock held, the slot of this number, made when there is none: zeroes. MISMATCH when it has other
 * counts. */
static gradcomp_status coder_slot_get(gradcomp_coder *c, uint32_t number, const uint64_t *counts, uint64_t total,
                                      coder_slot **out, gradcomp_error *err)
{
	*out = coder_slot_find(c, number);
	if (*out) {
		for (int r = 0; r < c->layout.nranks; r++)
			if ((*out)->counts[r] != counts[r])
				return error_set(err, GRADCOMP_ERR_MISMATCH,
				                 "coder '%s': slot %u keeps what was lost of %llu numbers in block "
				                 "%d, and this call has %llu "
				                 "there: give each tensor a slot of its own",
				                 c->name, number, (unsigned long long)(*out)->counts[r], r,
				                 (unsigned long long)counts[r]);
		return GRADCOMP_OK;
	}
	coder_slot *made =
		coder_slot_make(number, counts, c->layout.nranks, total, c->gpu ? coder_gpu_memory(c) : NULL);
	gradcomp_status st = coder_slot_put(c, number, total, made, err);
	*out = st ? NULL : made;
	return st;
}

static gradcomp_status check_counts(const gradcomp_coder *c, const uint64_t *counts, gradcomp_coder_request *q,
                                    gradcomp_error *err)
{
	for (int r = 0; r < c->layout.nranks; r++) {
		if (counts[r] > (uint64_t)INT64_MAX / sizeof(float) - q->total)
			return error_set(err, GRADCOMP_ERR_RANGE,
			                 "coder '%s': the counts up to that of rank %d, %llu, are more than memory "
			                 "can have",
			                 c->name, r, (unsigned long long)counts[r]);
		if (r == c->layout.rank)
			q->begin = q->total;
		q->total += q->counts[r] = counts[r];
	}
	if (c->parts.compressor->max_bucket && q->total > c->parts.compressor->max_bucket)
		return error_set(err, GRADCOMP_ERR_RANGE, "coder '%s': %llu numbers, '%s' counts to %llu", c->name,
		                 (unsigned long long)q->total, c->parts.compressor->info.name,
		                 (unsigned long long)c->parts.compressor->max_bucket);
	return GRADCOMP_OK;
}

static gradcomp_status check_call(const gradcomp_coder *c, const gradcomp_coder_request *q, gradcomp_error *err)
{
	uint64_t own = q->counts[c->layout.rank];
	uint64_t in = q->kind == CODER_REDUCE_SCATTER ? q->total : own,
		 out = q->kind == CODER_REDUCE_SCATTER ? own : q->total;
	if (q->dtype != GRADCOMP_F32 && q->dtype != GRADCOMP_F16 && q->dtype != GRADCOMP_BF16)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "coder '%s': element type %s (%d): a coder takes float32, float16 and bfloat16",
		                 c->name, coder_dtype_name(q->dtype), (int)q->dtype);
	if (!isfinite(q->scale) || q->scale == 0)
		return error_set(err, GRADCOMP_ERR_INVALID, "coder '%s': scale %g: must be finite and not 0", c->name,
		                 q->scale);
	if ((in && !q->in) || (out && !q->out))
		return error_set(err, GRADCOMP_ERR_INVALID, "coder '%s': %s of the %s is NULL for %llu numbers",
		                 c->name, in && !q->in ? "in" : "out", coder_kind_name(q->kind),
		                 (unsigned long long)(in && !q->in ? in : out));
	gradcomp_status st = GRADCOMP_OK;
	if (c->gpu && in)
		st = coder_gpu_check(c, q->in, "in", q->kind, err);
	if (!st && c->gpu && out)
		st = coder_gpu_check(c, q->out, "out", q->kind, err);
	return st;
}

/* Takes the request over on success. */
static gradcomp_status enqueue(gradcomp_coder *c, gradcomp_coder_request *q, gradcomp_error *err)
{
	bool keep = c->keeps && q->slot_number != GRADCOMP_CODER_NO_SLOT;
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&c->lock);
	if (keep)
		st = coder_slot_get(c, q->slot_number, q->counts, q->total, &q->slot, err);
	if (!st && c->gpu)
		st = coder_gpu_given(c, q, err);
	if (!st) {
		*c->last = q;
		c->last = &q->next;
		q->live_next = c->live;
		if (c->live)
			c->live->live_before = q;
		c->live = q;
		c->inflight++;
		pthread_cond_signal(&c->wake);
	}
	pthread_mutex_unlock(&c->lock);
	return st;
}

static gradcomp_status start(gradcomp_coder *c, const gradcomp_coder_request *call, const uint64_t *counts,
                             gradcomp_coder_request **out, gradcomp_error *err)
{
	gradcomp_error own = {0};
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "request is NULL");
	*out = NULL;
	if (!c || !counts)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", c ? "counts" : "coder");
	gradcomp_coder_request *q = malloc(sizeof *q + (size_t)c->layout.nranks * sizeof *q->counts);
	gradcomp_status st =
		q ? GRADCOMP_OK : error_set(&own, GRADCOMP_ERR_NOMEM, "coder '%s': no memory for a call", c->name);
	if (q) {
		*q = *call;
		q->coder = c;
		st = check_counts(c, counts, q, &own);
	}
	if (!st)
		st = check_call(c, q, &own);
	if (!st)
		st = transport_failure(c->job->transport, &own);
	if (!st)
		st = enqueue(c, q, &own);
	if (st) {
		free(q);
		if (st == GRADCOMP_ERR_NOMEM) /* it is this rank's alone */
			job_fail(c->job, st, own.text);
		return error_set(err, st, "%s", own.text);
	}
	*out = q;
	return GRADCOMP_OK;
}

gradcomp_status gradcomp_coder_reduce_scatter_start(gradcomp_coder *coder, void *in, void *out, const uint64_t *counts,
                                                    gradcomp_dtype dtype, double scale, uint32_t slot,
                                                    gradcomp_coder_request **request, gradcomp_error *err)
{
	const gradcomp_coder_request call = {.kind = CODER_REDUCE_SCATTER,
	                                     .in = in,
	                                     .out = out,
	                                     .dtype = dtype,
	                                     .scale = scale,
	                                     .slot_number = slot};
	return start(coder, &call, counts, request, err);
}

gradcomp_status gradcomp_coder_all_gather_start(gradcomp_coder *coder, const void *in, void *out,
                                                const uint64_t *counts, gradcomp_dtype dtype,
                                                gradcomp_coder_request **request, gradcomp_error *err)
{
	const gradcomp_coder_request call = {.kind = CODER_ALL_GATHER,
	                                     .in = (void *)in,
	                                     .out = out,
	                                     .dtype = dtype,
	                                     .scale = 1,
	                                     .slot_number = GRADCOMP_CODER_NO_SLOT};
	return start(coder, &call, counts, request, err);
}

gradcomp_status gradcomp_coder_reduce_scatter(gradcomp_coder *coder, void *in, void *out, const uint64_t *counts,
                                              gradcomp_dtype dtype, double scale, uint32_t slot, gradcomp_error *err)
{
	gradcomp_coder_request *q;
	gradcomp_status st = gradcomp_coder_reduce_scatter_start(coder, in, out, counts, dtype, scale, slot, &q, err);
	return st ? st : group_commit(coder->group, gradcomp_coder_wait(q, err), err);
}

gradcomp_status gradcomp_coder_all_gather(gradcomp_coder *coder, const void *in, void *out, const uint64_t *counts,
                                          gradcomp_dtype dtype, gradcomp_error *err)
{
	gradcomp_coder_request *q;
	gradcomp_status st = gradcomp_coder_all_gather_start(coder, in, out, counts, dtype, &q, err);
	return st ? st : group_commit(coder->group, gradcomp_coder_wait(q, err), err);
}

gradcomp_status gradcomp_coder_test(gradcomp_coder_request *q, int *done, gradcomp_error *err)
{
	if (!q || !done)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", q ? "done" : "request");
	gradcomp_coder *c = q->coder;
	pthread_mutex_lock(&c->lock);
	*done = q->done;
	pthread_mutex_unlock(&c->lock);
	return *done && q->status ? error_set(err, q->status, "%s", q->error.text) : GRADCOMP_OK;
}

gradcomp_status gradcomp_coder_wait(gradcomp_coder_request *q, gradcomp_error *err)
{
	if (!q)
		return GRADCOMP_OK;
	gradcomp_coder *c = q->coder;
	double began = clock_now();
	pthread_mutex_lock(&c->lock);
	while (!q->done)
		pthread_cond_wait(&c->ended, &c->lock);
	if (q->live_before)
		q->live_before->live_next = q->live_next;
	else
		c->live = q->live_next;
	if (q->live_next)
		q->live_next->live_before = q->live_before;
	c->stats.exposed_s += clock_now() - began;
	record(c, TRACE_CODER_WAIT, c->calls, q->slot_number, began, 0);
	gradcomp_status st = c->gpu ? coder_gpu_taken(c, q, err) : GRADCOMP_OK;
	pthread_mutex_unlock(&c->lock);
	if (q->status)
		st = error_set(err, q->status, "%s", q->error.text);
	free(q);
	return st;
}

static void destroy(gradcomp_coder *c)
{
	for (gradcomp_coder_request *q; (q = c->live);) {
		c->live = q->live_next;
		if (c->gpu)
			coder_gpu_taken(c, q, NULL);
		free(q);
	}
	group_coll_close(&c->coll_ctx);
	if (c->gpu)
		coder_gpu_drain(c);
	if (c->instance)
		c->parts.compressor->destroy(c->instance);
	coder_slots_free(c->slots, c->nslots);
	if (c->gpu)
		coder_gpu_close(c);
	free(c->work);
	free(c->asked);
	free(c->spec);
	free(c->collective);
	free(c->name);
	pthread_cond_destroy(&c->wake);
	pthread_cond_destroy(&c->ended);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

static gradcomp_status prepare(gradcomp_coder *c, const char *spec, const gradcomp_coder_options *o,
                               gradcomp_error *err)
{
	const bool device = o->device == GRADCOMP_CUDA;
	gradcomp_status st = coder_choose(&c->job->specs, spec, o->collective, device,
	                                  device && group_has_levels(c->group), &c->parts, err);
	if (!st && o->device != GRADCOMP_HOST && o->device != GRADCOMP_CUDA)
		st = error_set(err, GRADCOMP_ERR_INVALID, "device %u: must be GRADCOMP_HOST or GRADCOMP_CUDA",
		               o->device);
	if (st)
		return st;
	c->asked = strdup(spec ? spec : config_str(c->job->config, SET_GRADCOMP_COMPRESSOR));
	c->spec = strdup(c->parts.compressor_spec->text);
	c->collective = strdup(c->parts.collective_spec->text);
	c->name = strdup(o->name ? o->name : "coder");
	if (!c->asked || !c->spec || !c->collective || !c->name)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a coder");
	uint32_t traits = c->parts.compressor->traits;
	c->passes = (traits & GRADCOMP_TRAIT_PASSES_NONFINITE) != 0;
	/* A NaN's loss would stay in the memory for good. */
	c->keeps = !c->parts.dense && !c->passes && !(traits & GRADCOMP_TRAIT_LOSSLESS) && c->group->nranks > 1;
	c->shard = (gradcomp_tensor){.name = "shard", .numel = 1, .dims = &c->shard.numel, .ndim = 1};
	c->layout = (gradcomp_layout){.struct_size = sizeof c->layout,
	                              .ntensors = 1,
	                              .tensors = &c->shard,
	                              .numel = 1,
	                              .rank = c->group->me,
	                              .nranks = c->group->nranks,
	                              .seed = o->seed,
	                              .patterns = GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)};
	if (c->parts.device)
		st = coder_gpu_open(c, o, err);
	return st || c->parts.dense ? st
	       : c->gpu             ? coder_gpu_instance(c, err)
	                            : coder_instance(&c->parts, &c->job->host, &c->layout, &c->instance, err);
}

typedef struct coder_claim {
	uint64_t seed;
	char text[480]; /* SPECs */
} coder_claim;

static void differing_coders(const void *claim, const void *claim0, int first, char *out, size_t capacity)
{
	const coder_claim *a = claim, *b = claim0;
	if (memcmp(a->text, b->text, sizeof a->text))
		snprintf(out, capacity, "makes a coder of '%.*s', rank %d of '%.*s'", (int)sizeof a->text, a->text,
		         first, (int)sizeof b->text, b->text);
	else
		snprintf(out, capacity, "makes a coder with seed %llu, rank %d with %llu", (unsigned long long)a->seed,
		         first, (unsigned long long)b->seed);
}

/* Exchanges the first thing that ranks say to each other. */
static gradcomp_status same_coders(gradcomp_coder *c, gradcomp_status mine, gradcomp_error *err)
{
	coder_claim own;
	memset(&own, 0, sizeof own);
	if (!mine) {
		own.seed = c->layout.seed;
		snprintf(own.text, sizeof own.text, "%s + %s%s", c->spec, c->collective, c->gpu ? " on a GPU" : "");
	}
	return consensus(c->group, &(consensus_topic){"make its coder", &own, sizeof own, differing_coders, true}, mine,
	                 err);
}

/* Begins what this rank alone can fail at while the others go on, so a failure ends the job. */
static gradcomp_status begin(gradcomp_coder *c, gradcomp_error *err)
{
	gradcomp_status st =
		group_coll_open(c->group, c->parts.collective_plugin, c->parts.collective_spec, &c->coll_ctx, err);
	if (!st && c->gpu)
		st = coder_gpu_begin(c, err);
	if (!st && thread_start(&c->thread, work, c))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no thread for a coder");
	if (st)
		job_fail(c->job, st, err->text);
	return st;
}

/* Fills a row of a report that is written before the coder is freed. Nothing but the counters changes. */
static void row(void *of, report_coder *out)
{
	gradcomp_coder *c = of;
	*out = (report_coder){.name = strdup(c->name),
	                      .asked = strdup(c->asked),
	                      .compressor = strdup(c->spec),
	                      .collective = strdup(c->collective),
	                      .nranks = c->layout.nranks,
	                      .stats = {.struct_size = sizeof out->stats}};
	gradcomp_coder_get_stats(c, &out->stats);
}

gradcomp_status gradcomp_coder_create(gradcomp_group *group, const char *spec, const gradcomp_coder_options *options,
                                      gradcomp_coder **out, gradcomp_error *err)
{
	gradcomp_coder_options o = {0};
	gradcomp_error own = {0};
	if (!out)
		return error_set(err, GRADCOMP_ERR_INVALID, "out is NULL");
	*out = NULL;
	if (!group)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	if (options)
		memcpy(&o, options, options->struct_size < sizeof o ? options->struct_size : sizeof o);
	gradcomp_coder *c = calloc(1, sizeof *c);
	if (!c) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a coder");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a coder");
	}
	pthread_mutex_init(&c->lock, NULL);
	thread_condition(&c->wake);
	pthread_cond_init(&c->ended, NULL);
	c->job = group->job;
	c->group = group;
	c->last = &c->first;
	if (c->job->trace && trace_keeps(c->job->trace, c->job->rank)) {
		c->trace = c->job->trace;
		c->trace_id = trace_reducer(c->trace);
	}
	gradcomp_status st = prepare(c, spec, &o, &own);
	st = same_coders(c, st, &own);
	if (!st)
		st = begin(c, &own);
	if (st) {
		destroy(c);
		return error_set(err, st, "%s", own.text);
	}
	job_count(c->job, 1);
	c->part = (job_part){.of = c, .coder = row};
	job_show(c->job, &c->part);
	st = group_commit(group, st, err);
	if (st) {
		gradcomp_coder_free(c);
		return st;
	}
	*out = c;
	return GRADCOMP_OK;
}

static void keep_report(gradcomp_coder *c)
{
	report_coder kept = {.name = c->name,
	                     .asked = c->asked,
	                     .compressor = c->spec,
	                     .collective = c->collective,
	                     .nranks = c->layout.nranks,
	                     .stats = {.struct_size = sizeof kept.stats}};
	gradcomp_coder_get_stats(c, &kept.stats);
	c->name = c->asked = c->spec = c->collective = NULL;
	job_keep_coder(c->job, &kept);
}

void gradcomp_coder_free(gradcomp_coder *c)
{
	if (!c)
		return;
	job_hide(&c->part);
	pthread_mutex_lock(&c->lock);
	c->stopping = true;
	pthread_cond_signal(&c->wake);
	pthread_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	keep_report(c);
	job_count(c->job, -1);
	destroy(c);
}

void gradcomp_coder_get_stats(gradcomp_coder *c, gradcomp_coder_stats *stats)
{
	uint32_t size = stats->struct_size;
	pthread_mutex_lock(&c->lock);
	gradcomp_coder_stats full = c->stats;
	pthread_mutex_unlock(&c->lock);
	full.struct_size = size;
	full.wire_bytes = (double)channel_sent(c->coll_ctx.channel) + c->sent;
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}

const char *gradcomp_coder_spec(const gradcomp_coder *c)
{
	return c->spec;
}

const char *gradcomp_coder_collective(const gradcomp_coder *c)
{
	return c->collective;
}
