/* Prefetching: next() takes samples in order, and threads load those of this node before it
 * reaches them, at most `prefetch` of them.
 *
 * A window of positions is ahead of next(). A position whose sample is to be loaded is queued,
 * taken by a thread, and done; next() itself loads a sample that no thread has taken yet. The
 * lock is that of the threads: forked children never take it.
 *
 * Values of other nodes are requested further ahead. Where load() gives them as well (`reload`), and more come
 * later than it takes, none is requested for a while: next() loads them. Then it is tried again. */
#include <stdlib.h>
#include <string.h>

#include "io/dataset/net/fetch.h"
#include "job/rank_times.h"
#include "base/thread.h"

#define STRIDES 4 /* parts of the window */
#define FIRST 32  /* positions of the window at first, */
#define GROWTH 4  /* and more for each position that next() has taken */
#define LATE 8    /* values that have come too late, more than in time: others are not requested for a while */

typedef enum job_state { JOB_NONE, JOB_QUEUED, JOB_BUSY, JOB_DONE } job_state;

typedef struct job {
	uint64_t index;
	job_state state;
	gradcomp_status status;
	gradcomp_error error;
	gradcomp_value_view view;
} job;

struct prefetcher {
	gradcomp_dataset *ds;
	permutation o;
	uint64_t division, epoch;
	atomic_uint_fast64_t position; /* next()'s, */
	uint64_t front;                /* and of the end of the window */
	uint64_t far;                  /* other nodes' values are requested before it, */
	uint64_t resumed;              /* but not before this one: next() loads those */
	uint64_t paused;               /* positions that this was the last time; 0: requests have come in time since */
	unsigned late;                 /* values that came too late, less those in time; at most LATE */
	uint64_t began;                /* position that begin() gave */
	uint64_t length, window;
	/* When these differ next() is to go on at `place`, by the division that there is then. Under the lock. */
	atomic_uint_fast64_t divided, applied;
	uint64_t place;
	job *jobs; /* that of position p is p % window */

	pthread_mutex_t lock;
	pthread_cond_t work, done;
	uint64_t taken; /* positions before it are not queued any more */
	unsigned busy;
	bool stop;
	unsigned nthreads;
	pthread_t threads[];
};

/* Copies a view for as long as the caller's own is. */
static void view_move(gradcomp_value_view *to, const gradcomp_value_view *from)
{
	to->source = from->source;
	to->index = from->index;
	to->data = from->data;
	to->bytes = from->bytes;
	to->hold = from->hold;
}

static void job_run(prefetcher *p, job *j)
{
	j->view = (gradcomp_value_view){.struct_size = sizeof j->view};
	j->status = view_value_obtain(p->ds, j->index, TICKET_ORDERED, &j->view, &j->error);
}

static void *prefetch_main(void *arg)
{
	prefetcher *p = arg;
	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		job *j;

		while (p->taken < p->front && p->jobs[p->taken % p->window].state != JOB_QUEUED)
			p->taken++;
		if (p->taken == p->front) {
			pthread_cond_wait(&p->work, &p->lock);
			continue;
		}
		j = &p->jobs[p->taken++ % p->window];
		j->state = JOB_BUSY;
		p->busy++;
		pthread_mutex_unlock(&p->lock);
		job_run(p, j);
		pthread_mutex_lock(&p->lock);
		p->busy--;
		j->state = JOB_DONE;
		pthread_cond_broadcast(&p->done);
	}
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

static uint64_t index_at(const prefetcher *p, uint64_t position)
{
	return permutation_at(&p->o, position * division_nranks(p->division) + division_rank(p->division));
}

/* A sample of this node that is not in its memory yet, for the threads to have ready. */
static bool wants_thread(const prefetcher *p, uint64_t index)
{
	gradcomp_dataset *ds = p->ds;
	sample_owner at;
	if (!p->nthreads)
		return false;
	owner_of(ds, index, &at);
	return at.node == ds->node &&
	       (atomic_load_explicit(&ds->slots[at.slot].word, memory_order_relaxed) & WORD_STATE) != SLOT_READY;
}

/* Where a window that begins at `from`, once at `began`, and has come to `front` is to end: `front` if it is too
 * soon. It moves on in strides, so that several samples can be requested of a node at once. It is short at first:
 * else the first samples would share the links with later ones. */
static uint64_t window_end(const prefetcher *p, uint64_t began, uint64_t from, uint64_t front, uint64_t most)
{
	uint64_t reach = FIRST + GROWTH * (from - began), end;
	if (reach > most)
		reach = most;
	end = p->length - from < reach ? p->length : from + reach;
	if (end <= front || (front > from && end < p->length && end - front < reach / STRIDES))
		return front;
	return end;
}

static void request_far(prefetcher *p)
{
	gradcomp_dataset *ds = p->ds;
	uint64_t from = p->position > p->resumed ? p->position : p->resumed, end;
	/* Requested when next() comes to them, the first would be late again. */
	if (!ds->tickets || from - p->position > p->window / STRIDES)
		return;
	if (p->far < from)
		p->far = from;
	for (end = window_end(p, p->resumed, from, p->far, fetch_reach(ds, (uint32_t)p->window)); p->far < end;
	     p->far++) {
		uint64_t index = index_at(p, p->far);
		sample_owner at;

		owner_of(ds, index, &at);
		if (at.node != ds->node)
			fetch_expect(ds, index, TICKET_ORDERED);
	}
}

static void fill_window(prefetcher *p)
{
	uint64_t end = window_end(p, p->began, p->position, p->front, p->window);
	while (p->front < end) {
		job *j = &p->jobs[p->front % p->window];
		bool queued;

		j->index = index_at(p, p->front);
		queued = wants_thread(p, j->index);
		pthread_mutex_lock(&p->lock);
		p->front++;
		if (queued) {
			j->state = JOB_QUEUED;
			pthread_cond_signal(&p->work);
		}
		pthread_mutex_unlock(&p->lock);
	}
	request_far(p);
}

/* Empties the window; threads finish what they are loading first. */
static void prefetch_clear(prefetcher *p)
{
	pthread_mutex_lock(&p->lock);
	p->taken = p->front;
	while (p->busy)
		pthread_cond_wait(&p->done, &p->lock);
	for (uint64_t i = 0; i < p->window; i++) {
		if (p->jobs[i].state == JOB_DONE)
			gradcomp_dataset_release(p->ds, &p->jobs[i].view);
		p->jobs[i].state = JOB_NONE;
	}
	pthread_mutex_unlock(&p->lock);
	if (p->ds->tickets)
		fetch_drop(p->ds);
}

static void prefetch_begin(prefetcher *p, uint64_t epoch, uint64_t divided, uint64_t division, uint64_t position)
{
	const gradcomp_dataset_options *o = &p->ds->o;
	prefetch_clear(p);
	permutation_init(&p->o, o->seed, epoch, o->count, o->shuffle != 0);
	pthread_mutex_lock(&p->lock);
	p->division = division;
	p->length = permutation_length(o->count, division_nranks(division), division_rank(division));
	p->epoch = epoch;
	p->position = p->front = p->far = p->taken = p->began = p->resumed = position;
	p->paused = p->late = 0;
	p->applied = divided;
	pthread_mutex_unlock(&p->lock);
}

void prefetch_reached(prefetcher *p, uint64_t *epoch, uint64_t *place)
{
	pthread_mutex_lock(&p->lock);
	*epoch = p->epoch;
	*place = p->divided != p->applied  ? p->place
	         : p->position < p->length ? p->position * division_nranks(p->division)
	                                   : p->ds->o.count;
	pthread_mutex_unlock(&p->lock);
}

void prefetch_divide(prefetcher *p, uint64_t place)
{
	pthread_mutex_lock(&p->lock);
	p->place = place;
	p->divided++;
	pthread_mutex_unlock(&p->lock);
}

/* Does what next() begins with: the order is divided anew where ranks were lost. */
static void settle(prefetcher *p)
{
	uint64_t divided, division, place;
	while (p->divided != p->applied) {
		pthread_mutex_lock(&p->lock);
		divided = p->divided;
		place = p->place;
		pthread_mutex_unlock(&p->lock);
		division = atomic_load(&p->ds->area->division);
		prefetch_begin(p, p->epoch, divided, division, division_position(division, place));
	}
}

gradcomp_status prefetch_start(gradcomp_dataset *ds, gradcomp_error *err)
{
	prefetcher *p = calloc(1, sizeof *p + ds->o.workers * sizeof p->threads[0]);
	if (p)
		p->jobs = calloc(ds->o.prefetch, sizeof *p->jobs);
	if (!p || !p->jobs) {
		free(p);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to prefetch %u samples", ds->o.prefetch);
	}
	p->ds = ds;
	p->window = ds->o.prefetch;
	pthread_mutex_init(&p->lock, NULL);
	pthread_cond_init(&p->work, NULL);
	pthread_cond_init(&p->done, NULL);
	prefetch_begin(p, 0, 0, atomic_load(&ds->area->division), 0);
	ds->prefetcher = p;
	for (; p->nthreads < ds->o.workers; p->nthreads++)
		if (thread_start(&p->threads[p->nthreads], prefetch_main, p))
			return error_set(err, GRADCOMP_ERR_NOMEM, "cannot start worker %u of %u of a dataset",
			                 p->nthreads + 1, ds->o.workers);
	return GRADCOMP_OK;
}

void prefetch_halt(prefetcher *p)
{
	bool before;
	prefetch_clear(p);
	pthread_mutex_lock(&p->lock);
	before = p->stop;
	p->stop = true;
	pthread_cond_broadcast(&p->work);
	pthread_mutex_unlock(&p->lock);
	for (unsigned i = 0; !before && i < p->nthreads; i++)
		pthread_join(p->threads[i], NULL);
}

void prefetch_stop(prefetcher *p)
{
	if (!p)
		return;
	prefetch_halt(p);
	pthread_cond_destroy(&p->done);
	pthread_cond_destroy(&p->work);
	pthread_mutex_destroy(&p->lock);
	free(p->jobs);
	free(p);
}

static gradcomp_status not_in_child(const gradcomp_dataset *ds, const char *what, gradcomp_error *err)
{
	if (!process_is_child(ds))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE,
	                 "%s in a process forked off rank %d: only get(), expect(), release(), "
	                 "order() and length() may be called there",
	                 what, ds->rank);
}

/* next() goes on at a position, or at the first one at or behind `place`. */
static gradcomp_status begin_at(gradcomp_dataset *ds, uint64_t epoch, const uint64_t *position, uint64_t place,
                                gradcomp_error *err)
{
	uint64_t divided, division, length;
	divided = ds->prefetcher->divided;
	division = atomic_load(&ds->area->division);
	length = permutation_length(ds->o.count, division_nranks(division), division_rank(division));
	if (position && *position > length)
		return error_set(err, GRADCOMP_ERR_RANGE, "position %llu: rank %d has %llu samples an epoch",
		                 (unsigned long long)*position, (int)division_rank(division),
		                 (unsigned long long)length);
	if (place > ds->o.count)
		return error_set(err, GRADCOMP_ERR_RANGE, "%llu samples of an epoch are done: the dataset has %llu",
		                 (unsigned long long)place, (unsigned long long)ds->o.count);
	prefetch_begin(ds->prefetcher, epoch, divided, division,
	               position ? *position : division_position(division, place));
	fill_window(ds->prefetcher); /* while the caller gets ready */
	return GRADCOMP_OK;
}

static gradcomp_status begin(gradcomp_dataset *ds, const char *what, uint64_t epoch, const uint64_t *position,
                             uint64_t place, gradcomp_error *err)
{
	gradcomp_status st;
	if (!ds)
		return error_set(err, GRADCOMP_ERR_INVALID, "dataset is NULL");
	st = not_in_child(ds, what, err);
	if (!st)
		st = process_enter(ds, err);
	/* Where the ranks go on follows from where each of them is. */
	if (!st)
		st = job_enter(ds->group->job, what, err);
	if (st)
		return st;
	st = begin_at(ds, epoch, position, place, err);
	job_leave(ds->group->job);
	return st;
}

gradcomp_status gradcomp_dataset_begin(gradcomp_dataset *ds, uint64_t epoch, uint64_t position, gradcomp_error *err)
{
	return begin(ds, "gradcomp_dataset_begin()", epoch, &position, 0, err);
}

gradcomp_status gradcomp_dataset_resume(gradcomp_dataset *ds, uint64_t epoch, uint64_t reached, gradcomp_error *err)
{
	return begin(ds, "gradcomp_dataset_resume()", epoch, NULL, reached, err);
}

/* Returns true when a thread has taken it; else the caller loads it. */
static bool take_done(prefetcher *p, job *j)
{
	bool done;
	if (!p->nthreads)
		return false;
	pthread_mutex_lock(&p->lock);
	while (j->state == JOB_BUSY)
		pthread_cond_wait(&p->done, &p->lock);
	done = j->state == JOB_DONE;
	j->state = JOB_NONE;
	pthread_mutex_unlock(&p->lock);
	return done;
}

/* Requests nothing for a while, twice as long each time that requests do not help. */
static void requests_pause(prefetcher *p)
{
	uint64_t left = p->length - p->position;
	p->paused = p->paused ? 2 * p->paused : fetch_reach(p->ds, (uint32_t)p->window);
	p->paused = p->paused < left ? p->paused : left;
	p->resumed = p->far = p->position + p->paused;
	p->late = LATE / 2;
	fetch_drop(p->ds);
}

/* The value at p->position, wherever it is. */
static gradcomp_status obtain(prefetcher *p, uint64_t index, gradcomp_value_view *view, gradcomp_error *err)
{
	gradcomp_dataset *ds = p->ds;
	bool requested = p->position >= p->resumed;
	sample_owner at;
	gradcomp_status st;
	owner_of(ds, index, &at);
	if (!ds->tickets || !ds->o.reload || at.node == ds->node)
		return view_value_obtain(ds, index, TICKET_ORDERED, view, err);
	st = view_value_obtain(ds, index, TICKET_ORDERED | (requested ? 0 : FETCH_RELOAD), view, err);
	if (st || !requested)
		return st;
	if (view->source != GRADCOMP_VALUE_REMOTE) {
		if (++p->late == LATE)
			requests_pause(p);
	} else if (!p->late || !--p->late) {
		p->paused = 0;
	}
	return st;
}

/* Takes the sample at p->position. */
static gradcomp_status take(prefetcher *p, job *j, gradcomp_value_view *view, gradcomp_error *err)
{
	uint64_t begin = process_clock_ns(), took;
	bool done = take_done(p, j);
	gradcomp_status st = done ? j->status : obtain(p, j->index, view, err);
	took = process_clock_ns() - begin;
	rank_times_load(p->ds->group->job, 1e-9 * (double)took, !st);
	if (!done)
		return st;
	count(&p->ds->area->counts.wait_ns, took);
	if (st)
		return error_set(err, st, "%s", j->error.text);
	view_move(view, &j->view);
	return GRADCOMP_OK;
}

/* take() has not been, for as long as the window has not moved. */
static void put_back(prefetcher *p, job *j, gradcomp_value_view *view)
{
	if (!p->nthreads) {
		gradcomp_dataset_release(p->ds, view);
		return;
	}
	pthread_mutex_lock(&p->lock);
	view_move(&j->view, view);
	j->status = GRADCOMP_OK;
	j->state = JOB_DONE;
	pthread_mutex_unlock(&p->lock);
}

gradcomp_status gradcomp_dataset_next(gradcomp_dataset *ds, gradcomp_value_view *view, gradcomp_error *err)
{
	gradcomp_status st = view_value_check(ds, view, err);
	prefetcher *p;
	if (!st)
		st = not_in_child(ds, "next()", err);
	if (st)
		return st;
	p = ds->prefetcher;
	settle(p);
	if (p->position == p->length)
		return GRADCOMP_OK;
	fill_window(p);
	st = take(p, &p->jobs[p->position % p->window], view, err);
	/* A failure does not move on: it can be tried again. */
	p->position += !st;
	return st;
}

gradcomp_status gradcomp_dataset_next_copies(gradcomp_dataset *ds, uint64_t n, uint64_t bytes, uint64_t stride,
                                             void *out, uint64_t *got, gradcomp_error *err)
{
	gradcomp_value_view view = {.struct_size = sizeof view};
	gradcomp_status st = view_value_check(ds, &view, err);
	prefetcher *p;
	if (!st)
		st = not_in_child(ds, "next_copies()", err);
	if (st)
		return st;
	if (!got || (n && !out))
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", got ? "out" : "got");
	if (bytes > stride || (n && stride > UINT64_MAX / n))
		return error_set(err, GRADCOMP_ERR_INVALID, "stride %llu: %llu values of %llu bytes",
		                 (unsigned long long)stride, (unsigned long long)n, (unsigned long long)bytes);
	p = ds->prefetcher;
	settle(p);
	for (*got = 0; *got < n && p->position < p->length; ++*got, p->position++) {
		job *j;

		fill_window(p);
		j = &p->jobs[p->position % p->window];
		st = take(p, j, &view, err);
		if (st)
			return *got ? GRADCOMP_OK : st; /* the next call meets it again */
		if (view.bytes != bytes) {
			put_back(p, j, &view);
			break;
		}
		memcpy((unsigned char *)out + *got * stride, view.data, bytes);
		gradcomp_dataset_release(ds, &view);
	}
	return GRADCOMP_OK;
}
