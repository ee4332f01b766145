#include "kinds/enduring.h"

#include "kinds/kinds.h"
#include "reducer/reducer.h"
#include "base/error.h"
#include "base/thread.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct enduring {
	gradcomp_reducer base;
	enduring *next; /* the next of the job's */
	gradcomp_group *group;
	gradcomp_tensor_desc *tensors;
	uint32_t ntensors;
	gradcomp_reducer_options options;
	reducer *inner; /* NULL: detached */
	channel *barrier;
	uint64_t id;  /* the number, as group.done counts, of the call that made it */
	bool pending; /* that call has failed at its end */
	bool apart;   /* another rank has freed it */
	/* Guards what follows, which get_stats() reads on any thread, even beside shrink; one changes it. */
	pthread_mutex_t counts;
	uint64_t step;       /* the first that is not known to be done on all ranks */
	uint64_t base_steps; /* done by reducers that were before this inner one */
	uint64_t first;      /* the inner one's first step */
	report_reducer gone; /* the counters of all that were before this inner one, and the last one's row */
	/* While detached. */
	float **array; /* error memory, when there is one, and the compressor's arrays; NULL: not detached */
	engine_undo *undo;
	void *own; /* the compressor's own state */
	uint64_t nown, reached;
	uint64_t loading; /* the number of a load that has failed at its end; 0: none */
	int short_of;     /* there was no memory to keep it */
};

gradcomp_status enduring_check(const gradcomp_group *group, const gradcomp_reducer_options *o, gradcomp_error *err)
{
	static const char cannot[] = "gradcomp.on_failure=shrink cannot be with";
	if (o->delay)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s averages that come %u steps late", cannot,
		                 o->delay);
	if (group != group->job->world)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s a reducer of a part of the ranks", cannot);
	const reducer_kind *kind = kinds_find(group->job->config, o->compressor);
	if (kind)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s %s", cannot, kind->what);
	return GRADCOMP_OK;
}

static uint64_t reached(enduring *d)
{
	pthread_mutex_lock(&d->inner->lock);
	uint64_t step = d->inner->eng.step;
	pthread_mutex_unlock(&d->inner->lock);
	return step;
}

static gradcomp_status lost(gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_PEER_LOST, "a rank is lost, and the job could not go on");
}

/* Detached although the job has not failed: other ranks were leaving it when it shrank. */
static gradcomp_status detached(enduring *d, gradcomp_error *err)
{
	if (d->apart)
		return error_set(err, GRADCOMP_ERR_STATE,
		                 "another rank has freed this reducer before ranks were lost: free it here too");
	transport_fail(d->group->job->transport, GRADCOMP_ERR_PEER_LOST, -1, "ranks have left the job");
	return lost(err);
}

/* Until leave() the inner one stays: shrink waits, or was here first. */
static gradcomp_status enter(enduring *d, const char *call, gradcomp_error *err)
{
	gradcomp_status st = job_enter(d->group->job, call, err);
	if (st || d->inner)
		return st;
	st = detached(d, err);
	job_leave(d->group->job);
	return st;
}

static gradcomp_status leave(enduring *d, gradcomp_status st)
{
	job_leave(d->group->job);
	return st;
}

static gradcomp_status enduring_ready(gradcomp_reducer *base, uint32_t index, void *gradient, gradcomp_error *err)
{
	enduring *d = (enduring *)base;
	gradcomp_status st = enter(d, "gradcomp_reducer_ready()", err);
	if (st)
		return st;
	if (reached(d) != d->step) {
		st = transport_failure(d->group->job->transport, err);
		if (!st)
			st = error_set(
				err, GRADCOMP_ERR_STATE,
				"step %llu was not waited for: with gradcomp.on_failure=shrink every step ends with gradcomp_reducer_wait()",
				(unsigned long long)d->step);
		return leave(d, st);
	}
	return leave(d, d->inner->base.ops->ready(&d->inner->base, index, gradient, err));
}

/* Waits for a step on this rank's device that wait() has seen the end of and that is still to be done there. A rank
 * that leaves the barrier has all averages; so nobody may enter it before. */
static gradcomp_status on_device(reducer *r, gradcomp_error *err)
{
	if (!r->eng.ways.device->enqueues)
		return GRADCOMP_OK;
	gradcomp_status st = r->eng.ways.device->calls->join(&r->eng, err);
	pthread_mutex_lock(&r->lock);
	/* A collective that is given up ends what is on the device, too: who gives it up has not said so yet. */
	while (r->turns.running && !r->failed)
		thread_wait(&r->step_over, &r->lock, 1);
	if (r->failed)
		st = error_set(err, r->failed, "%s", r->failure.text);
	pthread_mutex_unlock(&r->lock);
	return st;
}

static gradcomp_status enduring_wait(gradcomp_reducer *base, gradcomp_error *err)
{
	enduring *d = (enduring *)base;
	gradcomp_status st = enter(d, "gradcomp_reducer_wait()", err);
	if (st)
		return st;
	st = d->inner->base.ops->wait(&d->inner->base, err);
	if (st || reached(d) == d->step)
		return leave(d, st);
	st = on_device(d->inner, err);
	if (!st)
		st = group_meet(d->barrier, err);
	if (!st) {
		uint64_t step = reached(d);
		pthread_mutex_lock(&d->counts);
		d->step = step;
		pthread_mutex_unlock(&d->counts);
	}
	return leave(d, st);
}

static gradcomp_status enduring_wait_for(gradcomp_reducer *base, uint32_t index, gradcomp_error *err)
{
	(void)base, (void)index;
	return error_set(
		err, GRADCOMP_ERR_UNSUPPORTED,
		"gradcomp_reducer_wait_for() with gradcomp.on_failure=shrink: a step is done on all ranks or void on all, which "
		"gradcomp_reducer_wait() tells");
}

/* Averages that are in place need not be of a step that is done. */
static gradcomp_status enduring_follow(gradcomp_reducer *base, uint32_t index, void *queue, gradcomp_error *err)
{
	enduring *d = (enduring *)base;
	gradcomp_status st = enter(d, "gradcomp_reducer_follow()", err);
	return st ? st : leave(d, d->inner->base.ops->follow(&d->inner->base, index, queue, err));
}

static gradcomp_status enduring_drain(gradcomp_reducer *base, void *const *corrections, void *const *weights,
                                      double rate, gradcomp_error *err)
{
	(void)corrections, (void)weights, (void)rate;
	return enduring_wait(base, err);
}

static gradcomp_status enduring_save(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                     gradcomp_error *err)
{
	enduring *d = (enduring *)base;
	gradcomp_status st = enter(d, "gradcomp_reducer_save()", err);
	return st ? st : leave(d, reducer_save(&d->inner->base, buf, capacity, bytes, err));
}

static gradcomp_status enduring_save_shared(gradcomp_reducer *base, void *buf, uint64_t capacity, uint64_t *bytes,
                                            gradcomp_error *err)
{
	enduring *d = (enduring *)base;
	gradcomp_status st = enter(d, "gradcomp_reducer_save_shared()", err);
	if (st)
		return st;
	st = reducer_save_shared(&d->inner->base, buf, capacity, bytes, err);
	return leave(d, buf ? group_commit(d->group, st, err) : st);
}

/* Steps before `done` are done. The inner one goes on at `step`. */
static void begin_at(enduring *d, uint64_t done, uint64_t step)
{
	pthread_mutex_lock(&d->counts);
	d->base_steps += done - d->first;
	d->step = d->first = step;
	pthread_mutex_unlock(&d->counts);
}

static gradcomp_status enduring_load(gradcomp_reducer *base, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	enduring *d = (enduring *)base;
	gradcomp_status st = enter(d, "gradcomp_reducer_load()", err);
	if (st)
		return st;
	st = reducer_load(&d->inner->base, buf, bytes, err);
	if (st)
		return leave(d, st);
	st = group_commit(d->group, st, err);
	if (st) {
		d->loading = d->group->done + 1;
	} else {
		engine_undo_forget(d->inner->eng.arrays.undo, d->ntensors);
		begin_at(d, d->step, reached(d));
	}
	return leave(d, st);
}

/* Adds what `gone` has counted, which had no later step, to `s`. */
static void stats_join(gradcomp_reducer_stats *s, const gradcomp_reducer_stats *gone)
{
	uint64_t errors = s->error_steps + gone->error_steps;
	s->buckets = s->buckets ? s->buckets : gone->buckets;
	s->nonfinite_steps += gone->nonfinite_steps;
	s->dense_bytes += gone->dense_bytes;
	s->wire_bytes += gone->wire_bytes;
	s->encode_s += gone->encode_s;
	s->exchange_s += gone->exchange_s;
	s->decode_s += gone->decode_s;
	s->exposed_s += gone->exposed_s;
	if (!s->error_steps)
		s->error_last = gone->error_last;
	if (errors)
		s->error_mean =
			(s->error_mean * (double)s->error_steps + gone->error_mean * (double)gone->error_steps) /
			(double)errors;
	s->error_steps = errors;
}

static void enduring_get_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats)
{
	enduring *d = (enduring *)base;
	gradcomp_reducer_stats full = {.struct_size = sizeof full};
	uint32_t size = stats->struct_size;
	/* In shrink: what there was before it, so far. */
	bool in = !enter(d, "", NULL);
	if (in)
		d->inner->base.ops->get_stats(&d->inner->base, &full);
	pthread_mutex_lock(&d->counts);
	stats_join(&full, &d->gone.stats);
	full.steps = d->base_steps + d->step - d->first;
	pthread_mutex_unlock(&d->counts);
	if (in)
		job_leave(d->group->job);
	full.struct_size = size;
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}

/* Makes one row of all inner reducers there were when one is freed, for the report. */
static void enduring_kept(void *ctx, report_reducer *row)
{
	enduring *d = ctx;
	report_reducer before = d->gone;
	stats_join(&row->stats, &before.stats);
	row->stats.steps = d->base_steps + d->step - d->first;
	pthread_mutex_lock(&d->counts);
	d->gone = *row;
	pthread_mutex_unlock(&d->counts);
	job_drop_reducer(&before);
}

static void drop_kept(enduring *d)
{
	for (uint32_t s = 0; d->array && s < d->undo->arrays; s++)
		free(d->array[s]);
	free(d->array);
	engine_undo_close(d->undo);
	free(d->own);
	d->undo = NULL;
	d->array = NULL;
	d->own = NULL;
	d->nown = 0;
}

/* Nothing of it uses the transport any more. */
static void put_down(enduring *d)
{
	if (d->barrier)
		channel_close(d->barrier);
	d->barrier = NULL;
	if (d->inner)
		d->inner->base.ops->free(&d->inner->base);
	d->inner = NULL;
}

/* The reducer itself is not in the list any more, or never was. */
static void destroy(enduring *d)
{
	put_down(d);
	drop_kept(d);
	if (d->gone.asked)
		job_keep_reducer(d->group->job, &d->gone);
	for (uint32_t i = 0; d->tensors && i < d->ntensors; i++) {
		free((char *)d->tensors[i].name);
		free((uint64_t *)d->tensors[i].dims);
	}
	free(d->tensors);
	free((char *)d->options.compressor);
	free((char *)d->options.collective);
	free((char *)d->options.schedule);
	pthread_mutex_destroy(&d->counts);
	free(d);
}

static void enduring_free(gradcomp_reducer *base)
{
	enduring *d = (enduring *)base, **at = &d->group->job->enduring;
	pthread_rwlock_rdlock(&d->group->job->shrink_lock);
	while (*at && *at != d)
		at = &(*at)->next;
	if (*at)
		*at = d->next;
	job_leave(d->group->job);
	destroy(d);
}

static void enduring_row(gradcomp_reducer *base, report_reducer *row)
{
	enduring *d = (enduring *)base;
	if (!enter(d, "", NULL)) {
		d->inner->base.ops->row(&d->inner->base, row);
		job_leave(d->group->job);
	} else {
		row->asked = strdup("");
		row->compressor = strdup("");
		row->collective = strdup("");
		row->nranks = d->group->nranks;
	}
}

static void report_to(enduring *d)
{
	d->inner->base.report = enduring_kept;
	d->inner->base.report_ctx = d;
}

static const reducer_ops ops = {enduring_ready,     enduring_wait, enduring_wait_for,    enduring_follow,
                                enduring_drain,     enduring_save, enduring_save_shared, enduring_load,
                                enduring_get_stats, enduring_free, enduring_row};

static char *copy(const char *text, int *short_of)
{
	char *p = text ? strdup(text) : NULL;
	*short_of |= text && !p;
	return p;
}

/* The program's declaration, which it may free. */
static gradcomp_status declare(enduring *d, const gradcomp_tensor_desc *tensors, uint32_t n,
                               const gradcomp_reducer_options *o, gradcomp_error *err)
{
	int short_of = 0;
	d->options = *o;
	d->options.compressor = copy(o->compressor, &short_of);
	d->options.collective = copy(o->collective, &short_of);
	d->options.schedule = copy(o->schedule, &short_of);
	d->tensors = calloc((size_t)n + 1, sizeof *d->tensors);
	d->ntensors = d->tensors ? n : 0;
	for (uint32_t i = 0; i < d->ntensors; i++) {
		d->tensors[i] = tensors[i];
		d->tensors[i].name = copy(tensors[i].name, &short_of);
		uint64_t *dims = malloc(((size_t)tensors[i].ndim + 1) * sizeof *dims);
		d->tensors[i].dims = dims;
		short_of |= !dims;
		if (dims && tensors[i].ndim)
			memcpy(dims, tensors[i].dims, tensors[i].ndim * sizeof *dims);
	}
	return short_of || !d->tensors ? error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer") : GRADCOMP_OK;
}

gradcomp_status enduring_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                              const gradcomp_reducer_options *options, gradcomp_reducer **out, gradcomp_error *err)
{
	enduring *d = calloc(1, sizeof *d), **at = &group->job->enduring;
	gradcomp_error own = {0};
	gradcomp_status st;
	if (!d) {
		job_fail(group->job, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	}
	pthread_mutex_init(&d->counts, NULL);
	d->group = group;
	/* First, with the program's own: it checks them. */
	st = reducer_create(group, tensors, ntensors, options, false, &d->inner, &own);
	if (!st) {
		report_to(d);
		st = declare(d, tensors, ntensors, options, &own);
		if (!st)
			st = group_channel(group, &d->barrier, &own);
		if (st)
			job_fail(group->job, st, own.text);
	}
	if (st) {
		destroy(d);
		return error_set(err, st, "%s", own.text);
	}
	d->base.ops = &ops;
	d->id = group->done + 1;
	while (*at)
		at = &(*at)->next;
	*at = d;
	*out = &d->base;
	return GRADCOMP_OK;
}

int enduring_count(const gradcomp_job *job)
{
	int n = 0;
	for (const enduring *d = job->enduring; d; d = d->next)
		n += d->inner != NULL;
	return n;
}

uint32_t enduring_all(const gradcomp_job *job)
{
	uint32_t n = 0;
	for (const enduring *d = job->enduring; d; d = d->next)
		n++;
	return n;
}

void enduring_ids(const gradcomp_job *job, uint64_t *ids)
{
	for (const enduring *d = job->enduring; d; d = d->next)
		*ids++ = d->id;
}

void enduring_pend(gradcomp_reducer *base)
{
	((enduring *)base)->pending = true;
}

static void drop(gradcomp_job *job, enduring *d)
{
	enduring **at = &job->enduring;
	while (*at != d)
		at = &(*at)->next;
	*at = d->next;
	job_hide(&d->base.part);
	destroy(d);
}

void enduring_sweep(gradcomp_job *job)
{
	for (enduring *d = job->enduring, *next; d; d = next) {
		next = d->next;
		if (d->pending || d == job->made)
			drop(job, d);
	}
}

/* Waits until the failed reducer's threads touch nothing, and nothing of it is on a device. */
static void settle(reducer *r)
{
	gradcomp_error known;
	reducer_look(r);
	pthread_mutex_lock(&r->lock);
	while (r->turns.running || r->calls.running)
		pthread_cond_wait(&r->step_over, &r->lock);
	pthread_mutex_unlock(&r->lock);
	/* The collective gives up what it has there. */
	r->eng.ways.device->calls->watch(&r->eng, &known);
	device_arena_flush(r->eng.ways.device->arena);
}

/* Takes from the inner one what it keeps, before it is freed. */
static void set_aside(enduring *d)
{
	engine *eng = &d->inner->eng;
	const struct gradcomp_compressor_v1 *c = eng->compressor;
	gradcomp_error err;
	drop_kept(d);
	d->reached = eng->step;
	d->array = calloc((size_t)eng->arrays.undo->arrays + 1, sizeof *d->array);
	d->short_of = !d->array || engine_take(eng, d->array, &d->undo, &err);
	if (c->save && !c->save(eng->instance, NULL, 0, &d->nown, &err) && d->nown) {
		d->own = malloc(d->nown);
		if (!d->own || c->save(eng->instance, d->own, d->nown, &d->nown, &err))
			d->short_of = 1;
	}
}

void enduring_detach(gradcomp_job *job)
{
	for (enduring *d = job->enduring; d; d = d->next) {
		if (d->inner) {
			settle(d->inner);
			begin_at(d, d->step, d->step);
			set_aside(d);
		}
		put_down(d);
	}
}

/* Leaves it as before a load that failed at its end, or as after it. */
static void settle_load(enduring *d, bool done)
{
	engine_undo *u = d->undo;
	if (done) {
		begin_at(d, d->step, d->reached);
		if (u)
			engine_undo_forget(u, d->ntensors);
	} else {
		d->reached = d->step;
		if (u && u->own) {
			free(d->own);
			d->own = u->own;
			d->nown = u->nown;
			u->own = NULL;
		}
	}
	d->loading = 0;
}

void enduring_settle(gradcomp_job *job, uint64_t done)
{
	for (enduring *d = job->enduring, *next; d; d = next) {
		next = d->next;
		if (d->loading)
			settle_load(d, d->loading <= done);
		if (!d->pending)
			continue;
		d->pending = false;
		if (d->id > done)
			drop(job, d);
		else
			job->made = d;
	}
}

void enduring_part(gradcomp_job *job, uint64_t id)
{
	for (enduring *d = job->enduring; d; d = d->next)
		if (d->id == id && !d->apart) {
			d->apart = true;
			drop_kept(d);
		}
}

typedef struct standing {
	uint64_t step, reached, nown, short_of;
} standing;

/* The new reducer goes on where the old one was, before step d->step. */
static gradcomp_status fill(enduring *d, gradcomp_error *err)
{
	engine *eng = &d->inner->eng;
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t i = 0; i < eng->layout.ntensors; i++) {
		const gradcomp_tensor *t = &eng->layout.tensors[i];
		float *const *from = d->undo->step[i] == d->step + 1 ? d->undo->array : d->array;
		for (uint32_t s = 0; !st && s < d->undo->arrays && t->numel; s++)
			st = engine_write(eng, s, t->offset, t->numel, from[s] + t->offset, err);
	}
	if (st) {
		job_fail(d->group->job, st, err->text);
		return st;
	}
	pthread_mutex_lock(&d->inner->lock);
	eng->step = d->step;
	pthread_mutex_unlock(&d->inner->lock);
	drop_kept(d);
	return GRADCOMP_OK;
}

/* The compressor's own state is one on all ranks: that of the first. */
static gradcomp_status share_own(enduring *d, uint64_t bytes, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *c = d->inner->eng.compressor;
	uint64_t *counts = calloc((size_t)d->group->nranks, sizeof *counts);
	void *all = malloc(bytes + 1);
	gradcomp_status st = GRADCOMP_OK;
	if (!counts || !all) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %llu bytes of a compressor's state",
		               (unsigned long long)bytes);
		job_fail(d->group->job, st, err->text);
	}
	if (!st && bytes) {
		counts[0] = bytes;
		st = group_allgather(d->group, d->group->me ? all : d->own, all, counts, GRADCOMP_U8, err);
	}
	if (!st && bytes) {
		st = c->load ? c->load(d->inner->eng.instance, all, bytes, err)
		             : error_set(err, GRADCOMP_ERR_INTERNAL, "compressor '%s' saves a state and loads none",
		                         c->info.name);
		if (st)
			job_fail(d->group->job, st, err->text);
	}
	free(counts);
	free(all);
	return st;
}

static gradcomp_status attach(enduring *d, standing *all, int *step_done, gradcomp_error *err)
{
	const standing mine = {d->step, d->reached, d->nown, (uint64_t)d->short_of};
	gradcomp_status st = reducer_create(d->group, d->tensors, d->ntensors, &d->options, false, &d->inner, err);
	if (!st)
		report_to(d);
	if (!st)
		st = group_channel(d->group, &d->barrier, err);
	if (!st)
		st = group_exchange(d->group, &mine, all, sizeof mine, err);
	if (st)
		return st;
	/* Done on one that lives: then all had its averages when that one went on. */
	uint64_t step = 0;
	for (int r = 0; r < d->group->nranks; r++)
		step = all[r].step > step ? all[r].step : step;
	for (int r = 0; !st && r < d->group->nranks; r++) {
		if (all[r].short_of)
			st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory on rank %d for what its reducer keeps", r);
		else if (all[r].reached < step)
			st = error_set(err, GRADCOMP_ERR_INTERNAL, "rank %d is at step %llu, and step %llu is done", r,
			               (unsigned long long)all[r].reached, (unsigned long long)step);
	}
	if (st)
		job_fail(d->group->job, st, err->text);
	else
		st = share_own(d, all[0].nown, err);
	if (st)
		return st;
	*step_done |= step > d->step;
	begin_at(d, step, step);
	return fill(d, err);
}

gradcomp_status enduring_attach(gradcomp_job *job, int *step_done, gradcomp_error *err)
{
	standing *all = calloc((size_t)job->nranks, sizeof *all);
	gradcomp_status st = GRADCOMP_OK;
	if (!all) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", job->nranks);
		job_fail(job, st, err->text);
	}
	for (enduring *d = job->enduring; !st && d; d = d->next) {
		if (d->apart)
			continue;
		st = attach(d, all, step_done, err);
		/* All that it had before is still set aside. */
		if (st && d->array)
			put_down(d);
	}
	free(all);
	return st;
}
