/* Along the order: next() takes samples in turn, and threads make those of this node
 * that are not there yet before it comes to them, at most `ahead` of them.
 *
 * A window of places runs before next(). A place that has something for the threads to
 * do is queued, taken by one of them, and done; next() makes itself what none has taken
 * yet. The lock is that of the threads: forked children never take it. */
#include <stdlib.h>

#include "io/dataset/fetch.h"
#include "job/job.h"
#include "base/thread.h"

#define STRIDES 4 /* of the window */
#define FIRST 32  /* places of the window at first, */
#define GROWTH 4  /* and more for each place that next() has taken */

typedef enum job_state { JOB_NONE, JOB_QUEUED, JOB_BUSY, JOB_DONE } job_state;

typedef struct job {
	uint64_t index;
	job_state state;
	gradcomp_status status;
	gradcomp_error error;
	gradcomp_value_view view;
} job;

struct ahead {
	gradcomp_dataset *ds;
	order o;
	uint64_t position, front; /* next() is at, and has looked ahead to */
	uint64_t began;           /* where begin() said */
	uint64_t length, window;
	job *jobs; /* that of position p is p % window */

	pthread_mutex_t lock;
	pthread_cond_t work, done;
	uint64_t taken; /* places before it are not queued any more */
	unsigned busy;
	bool stop;
	unsigned nthreads;
	pthread_t threads[];
};

/* As long as the caller's own is. */
static void view_move(gradcomp_value_view *to, const gradcomp_value_view *from)
{
	to->source = from->source;
	to->index = from->index;
	to->data = from->data;
	to->bytes = from->bytes;
	to->hold = from->hold;
}

static void job_run(ahead *a, job *j)
{
	j->view = (gradcomp_value_view){.struct_size = sizeof j->view};
	j->status = value_obtain(a->ds, j->index, TICKET_ORDERED, &j->view, &j->error);
}

static void *prefetch_main(void *arg)
{
	ahead *a = arg;

	pthread_mutex_lock(&a->lock);
	while (!a->stop) {
		job *j;

		while (a->taken < a->front && a->jobs[a->taken % a->window].state != JOB_QUEUED)
			a->taken++;
		if (a->taken == a->front) {
			pthread_cond_wait(&a->work, &a->lock);
			continue;
		}
		j = &a->jobs[a->taken++ % a->window];
		j->state = JOB_BUSY;
		a->busy++;
		pthread_mutex_unlock(&a->lock);
		job_run(a, j);
		pthread_mutex_lock(&a->lock);
		a->busy--;
		j->state = JOB_DONE;
		pthread_cond_broadcast(&a->done);
	}
	pthread_mutex_unlock(&a->lock);
	return NULL;
}

/* Has a sample of another node fetched; true when it is for the threads to have one ready:
 * of this node, and not in its memory yet. */
static bool wants_thread(const ahead *a, uint64_t index)
{
	gradcomp_dataset *ds = a->ds;
	place at;

	if (!a->nthreads && !ds->tickets)
		return false;
	owner_of(ds, index, &at);
	if (ds->node_of[at.rank] != ds->node) {
		fetch_expect(ds, index, TICKET_ORDERED);
		return false;
	}
	return a->nthreads &&
	       (atomic_load_explicit(&ds->slots[at.slot].word, memory_order_relaxed) & WORD_STATE) != SLOT_READY;
}

/* Goes on in strides, so that there are several to ask another node for at once. At
 * first not far: what is wanted soon would share the links with what is wanted later. */
static void look_ahead(ahead *a)
{
	uint64_t reach = FIRST + GROWTH * (a->position - a->began), end;

	if (reach > a->window)
		reach = a->window;
	end = a->length - a->position < reach ? a->length : a->position + reach;
	if (a->front > a->position && end < a->length && end - a->front < reach / STRIDES)
		return;
	while (a->front < end) {
		job *j = &a->jobs[a->front % a->window];
		bool queued;

		j->index = permutation_at(&a->o, a->front * (uint64_t)a->ds->nranks + (uint64_t)a->ds->rank);
		queued = wants_thread(a, j->index);
		pthread_mutex_lock(&a->lock);
		a->front++;
		if (queued) {
			j->state = JOB_QUEUED;
			pthread_cond_signal(&a->work);
		}
		pthread_mutex_unlock(&a->lock);
	}
}

/* Gives up what was done ahead; threads that are at something end it first. */
static void prefetch_clear(ahead *a)
{
	pthread_mutex_lock(&a->lock);
	a->taken = a->front;
	while (a->busy)
		pthread_cond_wait(&a->done, &a->lock);
	for (uint64_t i = 0; i < a->window; i++) {
		if (a->jobs[i].state == JOB_DONE)
			gradcomp_dataset_release(a->ds, &a->jobs[i].view);
		a->jobs[i].state = JOB_NONE;
	}
	pthread_mutex_unlock(&a->lock);
	if (a->ds->tickets)
		fetch_drop(a->ds);
}

static void prefetch_begin(ahead *a, uint64_t epoch, uint64_t position)
{
	const gradcomp_dataset_options *o = &a->ds->o;

	prefetch_clear(a);
	permutation_init(&a->o, o->seed, epoch, o->count, o->shuffle != 0);
	pthread_mutex_lock(&a->lock);
	a->position = a->front = a->taken = a->began = position;
	pthread_mutex_unlock(&a->lock);
}

gradcomp_status prefetch_start(gradcomp_dataset *ds, gradcomp_error *err)
{
	ahead *a = calloc(1, sizeof *a + ds->o.workers * sizeof a->threads[0]);

	if (a)
		a->jobs = calloc(ds->o.ahead, sizeof *a->jobs);
	if (!a || !a->jobs) {
		free(a);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to look %u samples ahead", ds->o.ahead);
	}
	a->ds = ds;
	a->window = ds->o.ahead;
	a->length = gradcomp_dataset_length(ds);
	pthread_mutex_init(&a->lock, NULL);
	pthread_cond_init(&a->work, NULL);
	pthread_cond_init(&a->done, NULL);
	prefetch_begin(a, 0, 0);
	ds->ahead = a;
	for (; a->nthreads < ds->o.workers; a->nthreads++)
		if (thread_start(&a->threads[a->nthreads], prefetch_main, a))
			return error_set(err, GRADCOMP_ERR_NOMEM, "cannot start worker %u of %u of a dataset",
			                 a->nthreads + 1, ds->o.workers);
	return GRADCOMP_OK;
}

void prefetch_halt(ahead *a)
{
	bool before;

	prefetch_clear(a);
	pthread_mutex_lock(&a->lock);
	before = a->stop;
	a->stop = true;
	pthread_cond_broadcast(&a->work);
	pthread_mutex_unlock(&a->lock);
	for (unsigned i = 0; !before && i < a->nthreads; i++)
		pthread_join(a->threads[i], NULL);
}

void prefetch_stop(ahead *a)
{
	if (!a)
		return;
	prefetch_halt(a);
	pthread_cond_destroy(&a->done);
	pthread_cond_destroy(&a->work);
	pthread_mutex_destroy(&a->lock);
	free(a->jobs);
	free(a);
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

gradcomp_status gradcomp_dataset_begin(gradcomp_dataset *ds, uint64_t epoch, uint64_t position, gradcomp_error *err)
{
	gradcomp_status st;

	if (!ds)
		return error_set(err, GRADCOMP_ERR_INVALID, "dataset is NULL");
	st = not_in_child(ds, "begin()", err);
	if (!st)
		st = process_enter(ds, err);
	if (st)
		return st;
	if (position > ds->ahead->length)
		return error_set(err, GRADCOMP_ERR_RANGE, "position %llu: rank %d has %llu samples an epoch",
		                 (unsigned long long)position, ds->rank, (unsigned long long)ds->ahead->length);
	prefetch_begin(ds->ahead, epoch, position);
	look_ahead(ds->ahead); /* while the caller gets ready */
	return GRADCOMP_OK;
}

/* Whether a thread has it, or had; else the place is the caller's. */
static bool take_done(ahead *a, job *j)
{
	bool done;

	if (!a->nthreads)
		return false;
	pthread_mutex_lock(&a->lock);
	while (j->state == JOB_BUSY)
		pthread_cond_wait(&a->done, &a->lock);
	done = j->state == JOB_DONE;
	j->state = JOB_NONE;
	pthread_mutex_unlock(&a->lock);
	return done;
}

gradcomp_status gradcomp_dataset_next(gradcomp_dataset *ds, gradcomp_value_view *view, gradcomp_error *err)
{
	gradcomp_status st = value_view_check(ds, view, err);
	uint64_t begin;
	ahead *a;
	job *j;

	if (!st)
		st = not_in_child(ds, "next()", err);
	if (st)
		return st;
	a = ds->ahead;
	if (a->position == a->length)
		return GRADCOMP_OK;
	look_ahead(a);
	j = &a->jobs[a->position % a->window];
	begin = clock_ns();
	if (take_done(a, j)) {
		count(&ds->area->counts.wait_ns, clock_ns() - begin);
		st = j->status;
		if (st)
			error_set(err, st, "%s", j->error.text);
		else
			view_move(view, &j->view);
	} else {
		st = value_obtain(ds, j->index, TICKET_ORDERED, view, err);
	}
	/* What failed can be tried again. */
	a->position += !st;
	return st;
}
