#include "reducer/progress.h"

#include "base/error.h"
#include "base/thread.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL = 2 };

/* Seconds: how long work waits for a turn of its kind that does not end; longer for computing, which waits for
 * nobody but in a callback. And how long a thread beyond the usual ones stays idle. */
static const double stall[PROGRESS_KINDS] = {0.05, 0.005};
#define IDLE 2.0

typedef struct thread {
	progress *of;
	struct thread *next;
	pthread_t id;
	enum { RUNS, SLEEPS, ENDED } state;
	double until; /* when it sleeps: it looks again then */
} thread;

struct progress {
	pthread_mutex_t lock;
	pthread_cond_t wake, left;
	progress_client *clients;
	progress_client *first[PROGRESS_KINDS], *last[PROGRESS_KINDS]; /* due */
	int running[PROGRESS_KINDS], limit[PROGRESS_KINDS];            /* turns */
	double begun[PROGRESS_KINDS];                                  /* the last of them */
	thread *threads;
	int nthreads; /* not ended */
	void (*bind)(void *ctx);
	void *bind_ctx;
	int uses; /* clients; under the job's lock when it is the job's */
	bool stop;
};

static void *thread_main(void *arg);

/* All but progress_join() and progress_leave(): with the lock held. */

static void enqueue(progress *p, progress_client *c, progress_kind kind)
{
	if (c->leaving || c->queued[kind])
		return;
	if (c->active[kind]) {
		c->again[kind] = true;
		return;
	}
	c->queued[kind] = true;
	c->queued_next[kind] = NULL;
	if (p->last[kind])
		p->last[kind]->queued_next[kind] = c;
	else
		p->first[kind] = c;
	p->last[kind] = c;
}

static void dequeue(progress *p, progress_client *c, progress_kind kind)
{
	progress_client *before = NULL, *at = p->first[kind];
	if (!c->queued[kind])
		return;
	while (at != c) {
		before = at;
		at = at->queued_next[kind];
	}
	if (before)
		before->queued_next[kind] = c->queued_next[kind];
	else
		p->first[kind] = c->queued_next[kind];
	if (p->last[kind] == c)
		p->last[kind] = before;
	c->queued[kind] = false;
}

/* When work of this kind may be taken: 0, at once; INFINITY when none is due. */
static double takeable(const progress *p, progress_kind kind)
{
	if (!p->first[kind])
		return INFINITY;
	return p->running[kind] < p->limit[kind] ? 0 : p->begun[kind] + stall[kind];
}

/* Finds a turn to begin now, or NULL. Exchanges first: the link is the scarce one. */
static progress_client *take(progress *p, progress_kind *kind)
{
	double now = clock_now();
	for (int k = PROGRESS_EXCHANGE; k >= PROGRESS_COMPUTE; k--) {
		progress_client *c = p->first[k];

		if (takeable(p, (progress_kind)k) > now)
			continue;
		if (p->running[k] >= p->limit[k])
			p->limit[k] = p->running[k] + 1;
		dequeue(p, c, (progress_kind)k);
		c->active[k] = true;
		p->running[k]++;
		p->begun[k] = now;
		*kind = (progress_kind)k;
		return c;
	}
	return NULL;
}

/* Joins the threads that have ended. */
static void reap(progress *p)
{
	for (thread **at = &p->threads; *at;) {
		thread *t = *at;

		if (t->state != ENDED) {
			at = &t->next;
			continue;
		}
		*at = t->next;
		pthread_join(t->id, NULL);
		free(t);
	}
}

/* Starts one more. 0, or an error number. */
static int start_thread(progress *p)
{
	thread *t = calloc(1, sizeof *t);
	int rc;
	reap(p);
	if (!t)
		return ENOMEM;
	t->of = p;
	rc = thread_start(&t->id, thread_main, t);
	if (rc) {
		free(t);
		return rc;
	}
	t->next = p->threads;
	p->threads = t;
	p->nthreads++;
	return 0;
}

/* Somebody takes what is due, or looks in time whether it must be. */
static void cover(progress *p)
{
	double when = fmin(takeable(p, PROGRESS_COMPUTE), takeable(p, PROGRESS_EXCHANGE));
	bool sleeps = false;
	if (isinf(when) || p->stop)
		return;
	for (const thread *t = p->threads; t; t = t->next) {
		if (t->state != SLEEPS)
			continue;
		if (when > 0 && t->until <= when)
			return;
		sleeps = true;
	}
	if (sleeps)
		pthread_cond_signal(&p->wake);
	else if (p->nthreads <= p->running[PROGRESS_COMPUTE] + p->running[PROGRESS_EXCHANGE])
		start_thread(p); /* without one, whoever ends its turn first takes it */
}

/* Clients whose time has come are due. When the next one's comes. */
static double look_at_clock(progress *p)
{
	double next = INFINITY, now = clock_now();
	for (progress_client *c = p->clients; c; c = c->next) {
		if (c->at <= 0 || c->queued[PROGRESS_EXCHANGE] || c->active[PROGRESS_EXCHANGE])
			continue;
		if (c->at <= now)
			enqueue(p, c, PROGRESS_EXCHANGE);
		else
			next = fmin(next, c->at);
	}
	return next;
}

/* Returns false when the thread is one too many. */
static bool sleep_thread(progress *p, thread *t)
{
	double now = clock_now(), next = look_at_clock(p);
	bool spare = p->nthreads > USUAL;
	next = fmin(next, fmin(takeable(p, PROGRESS_COMPUTE), takeable(p, PROGRESS_EXCHANGE)));
	if (next <= now)
		return true;
	if (spare)
		next = fmin(next, now + IDLE);
	t->until = next;
	t->state = SLEEPS;
	if (isinf(next))
		pthread_cond_wait(&p->wake, &p->lock);
	else
		thread_wait(&p->wake, &p->lock, (int)fmin(ceil((next - now) * 1000), 1e6));
	t->state = RUNS;
	return !spare || p->nthreads <= USUAL || clock_now() < now + IDLE;
}

static void *thread_main(void *arg)
{
	thread *t = arg;
	progress *p = t->of;
	progress_kind kind;
	bool needed = true;
	if (p->bind)
		p->bind(p->bind_ctx);
	pthread_mutex_lock(&p->lock);
	while (!p->stop) {
		progress_client *c = take(p, &kind);

		/* It may have been woken up for work just when it had been idle for long enough. */
		if (!c && !needed)
			break;
		if (!c) {
			needed = sleep_thread(p, t);
			continue;
		}
		needed = true;
		if (kind == PROGRESS_EXCHANGE)
			c->at = 0;
		cover(p);
		pthread_mutex_unlock(&p->lock);
		c->turn[kind](c->ctx);
		pthread_mutex_lock(&p->lock);
		/* Ranks that have had different orders will have them again; a callback that waits is an accident. */
		if (!--p->running[kind] && kind == PROGRESS_COMPUTE)
			p->limit[kind] = 1;
		c->active[kind] = false;
		if (c->again[kind] && !c->leaving)
			enqueue(p, c, kind);
		c->again[kind] = false;
		if (c->leaving)
			pthread_cond_broadcast(&p->left);
	}
	p->nthreads--;
	cover(p);
	/* Only now: to start another joins those that have ended. */
	t->state = ENDED;
	pthread_mutex_unlock(&p->lock);
	return NULL;
}

/* Called without the lock. */
static void progress_close(progress *p)
{
	pthread_mutex_lock(&p->lock);
	p->stop = true;
	pthread_cond_broadcast(&p->wake);
	pthread_mutex_unlock(&p->lock);
	while (p->threads) {
		thread *t = p->threads;

		p->threads = t->next;
		pthread_join(t->id, NULL);
		free(t);
	}
	pthread_cond_destroy(&p->wake);
	pthread_cond_destroy(&p->left);
	pthread_mutex_destroy(&p->lock);
	free(p);
}

static gradcomp_status progress_open(const progress_client *c, progress **out, gradcomp_error *err)
{
	progress *p = calloc(1, sizeof *p);
	int rc = 0;
	if (!p)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the reducer's threads");
	pthread_mutex_init(&p->lock, NULL);
	thread_condition(&p->wake);
	pthread_cond_init(&p->left, NULL);
	p->limit[PROGRESS_COMPUTE] = p->limit[PROGRESS_EXCHANGE] = 1;
	p->bind = c->bind;
	p->bind_ctx = c->ctx;
	pthread_mutex_lock(&p->lock);
	for (int i = 0; !rc && i < USUAL; i++)
		rc = start_thread(p);
	pthread_mutex_unlock(&p->lock);
	if (rc) {
		progress_close(p);
		return error_set(err, GRADCOMP_ERR_NOMEM, "could not start the reducer's threads: %s", strerror(rc));
	}
	*out = p;
	return GRADCOMP_OK;
}

gradcomp_status progress_join(progress_client *c, gradcomp_job *job, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	progress *p = NULL;
	pthread_mutex_lock(&job->lock);
	if (!c->bind)
		p = job->progress;
	if (!p)
		st = progress_open(c, &p, err);
	if (!st) {
		p->uses++;
		if (!c->bind)
			job->progress = p;
	}
	pthread_mutex_unlock(&job->lock);
	if (st)
		return st;
	pthread_mutex_lock(&p->lock);
	c->of = p;
	c->next = p->clients;
	p->clients = c;
	pthread_mutex_unlock(&p->lock);
	return GRADCOMP_OK;
}

void progress_leave(progress_client *c, gradcomp_job *job)
{
	progress *p = c->of;
	progress_client **at;
	bool last;
	if (!p)
		return;
	pthread_mutex_lock(&p->lock);
	c->leaving = true;
	for (at = &p->clients; *at != c; at = &(*at)->next)
		;
	*at = c->next;
	for (int k = 0; k < PROGRESS_KINDS; k++)
		dequeue(p, c, (progress_kind)k);
	while (c->active[PROGRESS_COMPUTE] || c->active[PROGRESS_EXCHANGE])
		pthread_cond_wait(&p->left, &p->lock);
	c->of = NULL;
	pthread_mutex_unlock(&p->lock);
	pthread_mutex_lock(&job->lock);
	last = !--p->uses;
	if (last && !c->bind)
		job->progress = NULL;
	pthread_mutex_unlock(&job->lock);
	if (last)
		progress_close(p);
}

void progress_wake(progress_client *c, progress_kind kind)
{
	progress *p = c->of;
	pthread_mutex_lock(&p->lock);
	enqueue(p, c, kind);
	if (c->queued[kind])
		cover(p);
	pthread_mutex_unlock(&p->lock);
}

void progress_next(progress_client *c, progress_kind kind)
{
	pthread_mutex_lock(&c->of->lock);
	enqueue(c->of, c, kind);
	pthread_mutex_unlock(&c->of->lock);
}

bool progress_contended(const progress_client *c, progress_kind kind)
{
	pthread_mutex_lock(&c->of->lock);
	bool due = c->of->first[kind] != NULL;
	pthread_mutex_unlock(&c->of->lock);
	return due;
}

void progress_at(progress_client *c, double at)
{
	progress *p = c->of;
	bool looks = at <= 0, sleeps = false;
	pthread_mutex_lock(&p->lock);
	if (at <= 0 || c->at <= 0 || at < c->at)
		c->at = at;
	for (const thread *t = p->threads; t && !looks; t = t->next) {
		sleeps |= t->state == SLEEPS;
		looks = t->state == SLEEPS && t->until <= at;
	}
	if (!looks && sleeps)
		pthread_cond_signal(&p->wake);
	pthread_mutex_unlock(&p->lock);
}
