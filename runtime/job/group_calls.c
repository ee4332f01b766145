/* The queue of a group's calls, the threads that carry them out, and the public functions (gradcomp_call). */
#include "job/group_calls.h"

#include "base/error.h"
#include "base/first_sizes.h"
#include "base/thread.h"

#include <stdlib.h>
#include <string.h>

/* A call is given this time for somebody to wait for it: that thread then carries it out. */
#define NAP_SECONDS 200e-6
/* Looks that find nothing before a thread rests, from which it has to be woken: while calls come, nobody has to. */
#define NAPS 16
/* A thread is woken at once for what is so long. */
#define HURRY_BYTES (64u << 10)

static bool forked(const group_calls *c)
{
	return c->group && transport_forked(c->group->job->transport);
}

static bool transport_is_up(const group_calls *c)
{
	return !transport_failure(c->group->job->transport, NULL);
}

/* Ends the group for all calls, with the lock held, which is left meanwhile. The first end counts. */
static void end_group(group_calls *c, gradcomp_status status, const char *text)
{
	group_calls_over(c, status, text);
	group_messages_end(c);
}

/* The thread that carries out a collective does this. */

static gradcomp_status open_collective(group_calls *c, gradcomp_error *err)
{
	gradcomp_group *g = c->group;
	gradcomp_status st = GRADCOMP_OK;
	const plugin *p;
	const spec *s;
	channel *ch;
	if (!g->blocking.channel) {
		st = job_collective(g->job, &p, &s, err);
		if (!st)
			st = group_own_channel(g, GROUP_BLOCKING, &ch, err);
		if (!st)
			st = group_coll_on(g, ch, p, s, &g->blocking, err);
	}
	if (st)
		return st;
	pthread_mutex_lock(&c->lock);
	c->at_work = g->blocking.channel;
	if (c->over)
		st = error_set(err, c->why.status, "%s", c->why.text);
	pthread_mutex_unlock(&c->lock);
	return st;
}

static void close_collective(group_calls *c)
{
	pthread_mutex_lock(&c->lock);
	c->at_work = NULL;
	pthread_mutex_unlock(&c->lock);
	group_coll_close(&c->group->blocking);
	group_room_free(&c->group->room);
}

/* The group is over here. Not of a world, which ranks leave in another way. */
static void dismiss(group_calls *c)
{
	if (c->group != c->group->job->world && !c->told && transport_is_up(c))
		group_dismiss(c->group, c->abrupt);
	c->told = true;
}

/* With the lock held, which is left meanwhile. */
static void close_here(group_calls *c)
{
	pthread_mutex_unlock(&c->lock);
	close_collective(c);
	dismiss(c);
	pthread_mutex_lock(&c->lock);
	c->busy = false;
	pthread_cond_broadcast(&c->ended);
}

static gradcomp_status carry_out(group_calls *c, const gradcomp_group_request *q, gradcomp_error *err)
{
	gradcomp_group *g = c->group;
	gradcomp_status st = transport_failure(g->job->transport, err);
	bool over;
	if (!st)
		st = open_collective(c, err);
	if (!st) {
		double left = q->deadline > 0 ? q->deadline - clock_now() : 0;
		/* A call that should have ended by now still looks, but does not wait. */
		channel_apart(g->blocking.channel, !q->plain, q->deadline > 0 && left < 1e-9 ? 1e-9 : left);
		st = group_collective(g, &q->call, q->plain, err);
	}
	if (!st && q->commits)
		return group_commit(g, st, err);
	if (!st || group_refused(st) || !transport_is_up(c))
		return st;
	pthread_mutex_lock(&c->lock);
	over = c->over;
	if (!q->plain) {
		end_group(c, st, err->text);
		c->abrupt = true;
	}
	pthread_mutex_unlock(&c->lock);
	if (!over && q->plain)
		job_fail(g->job, st, err->text);
	return st;
}

/* With the lock held, which is left meanwhile. */
static void carry_first(group_calls *c)
{
	gradcomp_group_request *q = c->first;
	gradcomp_error err = {0};
	gradcomp_status st;
	c->first = q->next;
	if (!c->first)
		c->last = &c->first;
	c->busy = true;
	pthread_mutex_unlock(&c->lock);
	st = carry_out(c, q, &err);
	if (q->call.done)
		q->call.done(q->call.ctx, st, st ? &err : NULL);
	pthread_mutex_lock(&c->lock);
	q->status = st;
	if (st)
		q->error = err;
	/* Its owner may free it when the lock is free. */
	q->done = true;
	if (c->over && c->at_work) {
		/* So that the others, who may wait for this rank, learn of it. */
		pthread_cond_broadcast(&c->ended);
		close_here(c);
		return;
	}
	c->busy = false;
	pthread_cond_broadcast(&c->ended);
}

/* With the lock held, which is left meanwhile: what waits in the queue of a group that is over ends, and where no
 * thread is at work the others' ends of its connections learn of it. */
static void flush(group_calls *c)
{
	while (!c->busy && c->first)
		carry_first(c);
	if (c->busy)
		return;
	c->busy = true;
	close_here(c);
}

/* Threads of the group. */

/* Where the group has ended by what a message met, no thread may be at work on a collective. */
static void close_what_ended(group_calls *c)
{
	if (c->over && c->at_work)
		flush(c);
}

static void carry_messages(group_calls *c)
{
	group_messages_carry(c);
	close_what_ended(c);
}

static double collective_pending(const group_calls *c)
{
	return c->first ? c->first->began : 0;
}

static bool collective_vacant(const group_calls *c)
{
	return !c->busy;
}

static void *work(void *arg)
{
	group_worker *w = arg;
	group_calls *c = w->calls;
	int naps = 0;
	pthread_mutex_lock(&c->lock);
	while (!w->stopping) {
		bool vacant = w->vacant(c);
		double since = vacant ? w->pending(c) : 0, now = clock_now();
		if (since > 0 && (w->hurry || now >= since + NAP_SECONDS)) {
			w->carry(c);
			naps = 0;
		} else if (since > 0 || !vacant || naps++ < NAPS) {
			w->hurry &= since > 0 || !vacant;
			thread_wait_until(&w->work, &c->lock, (since > 0 ? since : now) + NAP_SECONDS);
		} else {
			w->resting = true;
			w->hurry = false;
			while (w->resting && !w->stopping)
				pthread_cond_wait(&w->work, &c->lock);
			naps = 0;
		}
	}
	pthread_mutex_unlock(&c->lock);
	return NULL;
}

void group_worker_wake(group_worker *w, bool hurry)
{
	if (!w->started)
		w->started = !thread_start(&w->thread, work, w);
	if (hurry || w->resting)
		pthread_cond_signal(&w->work);
	w->hurry |= hurry;
	w->resting = false;
}

/* With the lock held, which is left meanwhile. */
static void stop(group_worker *w)
{
	if (!w->started)
		return;
	w->stopping = true;
	pthread_cond_signal(&w->work);
	pthread_mutex_unlock(&w->calls->lock);
	pthread_join(w->thread, NULL);
	pthread_mutex_lock(&w->calls->lock);
	w->started = w->stopping = w->hurry = w->resting = false;
}

group_calls *group_calls_create(gradcomp_group *g)
{
	group_calls *c = calloc(1, sizeof *c);
	if (!c)
		return NULL;
	c->group = g;
	c->references = 1;
	c->last = &c->first;
	pthread_mutex_init(&c->lock, NULL);
	thread_condition(&c->ended);
	c->collectives = (group_worker){
		.calls = c, .pending = collective_pending, .vacant = collective_vacant, .carry = carry_first};
	c->messages = (group_worker){.calls = c,
	                             .pending = group_messages_pending,
	                             .vacant = group_messages_vacant,
	                             .carry = carry_messages};
	thread_condition(&c->collectives.work);
	thread_condition(&c->messages.work);
	return c;
}

void group_calls_close(group_calls *c)
{
	/* Its threads are not in this process, and its lock may be held for ever. */
	if (forked(c)) {
		group_coll_close(&c->group->blocking);
		group_room_free(&c->group->room);
		return;
	}
	pthread_mutex_lock(&c->lock);
	c->abrupt |= c->busy || c->first;
	end_group(c, GRADCOMP_ERR_STATE, "the group has been freed");
	while (c->busy || c->first) {
		flush(c);
		if (c->busy)
			pthread_cond_wait(&c->ended, &c->lock);
	}
	stop(&c->collectives);
	stop(&c->messages);
	/* The thread that moved messages may have stopped before they had ended. */
	group_messages_end(c);
	group_messages_free(c);
	flush(c);
	c->over = c->abrupt = c->told = false;
	pthread_mutex_unlock(&c->lock);
}

/* With the lock held, which is gone afterwards. */
static void release(group_calls *c)
{
	bool last = !--c->references;
	pthread_mutex_unlock(&c->lock);
	if (!last)
		return;
	pthread_cond_destroy(&c->ended);
	pthread_cond_destroy(&c->collectives.work);
	pthread_cond_destroy(&c->messages.work);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

void group_calls_free(group_calls *c)
{
	if (!c)
		return;
	if (forked(c))
		return;
	pthread_mutex_lock(&c->lock);
	c->group = NULL;
	release(c);
}

/* Calls. */

/* Fills in a request and puts it to the others; with the lock held on success. */
static gradcomp_status put(gradcomp_group *g, gradcomp_group_request *q, gradcomp_error *err)
{
	group_calls *c = g->calls;
	bool world = g == g->job->world && g->job->transport_options.outlives;
	/* Before the lock, which a forked process may find held. */
	gradcomp_status st = transport_failure(g->job->transport, err);
	if (st)
		return st;
	q->calls = c;
	q->next = NULL;
	q->done = false;
	q->status = GRADCOMP_OK;
	q->began = clock_now();
	/* The ranks of such a world go on together, or not at all. */
	q->plain |= world && !group_call_is_message(q);
	q->deadline = q->call.timeout > 0 && !q->plain ? q->began + q->call.timeout : 0;
	pthread_mutex_lock(&c->lock);
	if (c->over) {
		st = error_set(err, c->why.status, "%s", c->why.text);
	} else if (group_call_is_message(q)) {
		st = group_message_post(c, q, err);
	} else {
		*c->last = q;
		c->last = &q->next;
	}
	if (st)
		pthread_mutex_unlock(&c->lock);
	return st;
}

/* With the lock held: returns when q has ended, or at that time (0: no limit). */
static void await(group_calls *c, gradcomp_group_request *q, double until)
{
	if (group_call_is_message(q)) {
		group_message_wait(c, q, until);
		close_what_ended(c);
		return;
	}
	/* A collective that this thread began could not be left. */
	if (until > 0 && !q->done)
		group_worker_wake(&c->collectives, true);
	while (!q->done && !(until > 0 && clock_now() >= until)) {
		if (until > 0)
			thread_wait_until(&c->ended, &c->lock, until);
		else if (!c->busy && c->first)
			carry_first(c);
		else
			pthread_cond_wait(&c->ended, &c->lock);
	}
}

static gradcomp_status run(gradcomp_group *g, gradcomp_group_request *q, gradcomp_error *err)
{
	gradcomp_status st = put(g, q, err);
	if (st)
		return st;
	await(g->calls, q, 0);
	pthread_mutex_unlock(&g->calls->lock);
	return q->status ? error_set(err, q->status, "%s", q->error.text) : GRADCOMP_OK;
}

gradcomp_status group_run(gradcomp_group *g, const gradcomp_call *call, gradcomp_error *err)
{
	gradcomp_group_request q;
	gradcomp_status st = group_call_check(g, call, err);
	if (st)
		return st;
	q.call = *call;
	q.plain = true;
	q.commits = false;
	return run(g, &q, err);
}

/* Copies what a program of any release gives. */
static gradcomp_status take_call(const gradcomp_group *g, const gradcomp_call *call, gradcomp_call *out,
                                 gradcomp_error *err)
{
	if (!g || !call)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", g ? "call" : "group");
	if (call->struct_size < FIRST_SIZE(gradcomp_call))
		return error_set(err, GRADCOMP_ERR_INVALID, "a call of %u bytes: must be %d or more", call->struct_size,
		                 FIRST_SIZE(gradcomp_call));
	*out = (gradcomp_call){0};
	memcpy(out, call, call->struct_size < sizeof *out ? call->struct_size : sizeof *out);
	return group_call_check(g, out, err);
}

gradcomp_status gradcomp_group_call(gradcomp_group *g, const gradcomp_call *call, gradcomp_error *err)
{
	gradcomp_group_request q;
	gradcomp_status st = take_call(g, call, &q.call, err);
	if (st)
		return st;
	q.call.done = NULL;
	q.plain = false;
	q.commits = true;
	return run(g, &q, err);
}

gradcomp_status gradcomp_group_start(gradcomp_group *g, const gradcomp_call *call, gradcomp_group_request **request,
                                     gradcomp_error *err)
{
	gradcomp_group_request *q;
	gradcomp_status st;
	if (!request)
		return error_set(err, GRADCOMP_ERR_INVALID, "request is NULL");
	*request = NULL;
	q = calloc(1, sizeof *q);
	if (!q)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a call");
	st = take_call(g, call, &q->call, err);
	q->commits = true;
	if (!st)
		st = put(g, q, err);
	if (st) {
		free(q);
		return st;
	}
	group_calls *c = g->calls;
	c->references++;
	if (group_call_is_message(q)) {
		group_messages_turn(c);
		if (!q->done)
			group_worker_wake(&c->messages, false);
	} else {
		group_worker_wake(&c->collectives, q->call.count * gradcomp_dtype_bytes(q->call.dtype) >= HURRY_BYTES);
	}
	pthread_mutex_unlock(&c->lock);
	*request = q;
	return GRADCOMP_OK;
}

/* With the lock held: how a call has ended. */
static gradcomp_status outcome(const gradcomp_group_request *q, gradcomp_error *err)
{
	return q->status ? error_set(err, q->status, "%s", q->error.text) : GRADCOMP_OK;
}

gradcomp_status gradcomp_group_test(gradcomp_group_request *q, int *done, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (!q || !done)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s is NULL", q ? "done" : "request");
	*done = 0;
	if (forked(q->calls))
		return transport_failure(q->calls->group->job->transport, err);
	pthread_mutex_lock(&q->calls->lock);
	*done = q->done;
	if (q->done)
		st = outcome(q, err);
	pthread_mutex_unlock(&q->calls->lock);
	return st;
}

gradcomp_status gradcomp_group_wait(gradcomp_group_request *q, double seconds, int *done, gradcomp_error *err)
{
	gradcomp_status st;
	if (done)
		*done = 0;
	if (!q)
		return error_set(err, GRADCOMP_ERR_INVALID, "request is NULL");
	if (forked(q->calls))
		return transport_failure(q->calls->group->job->transport, err);
	pthread_mutex_lock(&q->calls->lock);
	await(q->calls, q, seconds >= 0 ? clock_now() + seconds : 0);
	if (done)
		*done = q->done;
	st = q->done ? outcome(q, err)
	             : error_set(err, GRADCOMP_ERR_TIMEOUT, "the call has not ended after %.3g s, and goes on",
	                         seconds);
	pthread_mutex_unlock(&q->calls->lock);
	return st;
}

void gradcomp_group_request_free(gradcomp_group_request *q)
{
	if (!q || forked(q->calls))
		return;
	group_calls *c = q->calls;
	pthread_mutex_lock(&c->lock);
	await(c, q, 0);
	release(c);
	free(q);
}

gradcomp_status gradcomp_group_abort(gradcomp_group *g, const char *text, gradcomp_error *err)
{
	group_calls *c;
	if (!g)
		return error_set(err, GRADCOMP_ERR_INVALID, "group is NULL");
	if (transport_forked(g->job->transport))
		return transport_failure(g->job->transport, err);
	if (g == g->job->world && g->job->transport_options.outlives)
		return error_set(err, GRADCOMP_ERR_STATE,
		                 "the world of a job with gradcomp.on_failure=shrink cannot be given up");
	c = g->calls;
	pthread_mutex_lock(&c->lock);
	c->abrupt = true;
	end_group(c, GRADCOMP_ERR_STATE, text ? text : "the group has been given up");
	flush(c);
	pthread_mutex_unlock(&c->lock);
	return GRADCOMP_OK;
}
