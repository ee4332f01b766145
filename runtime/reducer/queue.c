/* The two queues of a reducer and the hand-over between them. */
#include "gpu.h"
#include "shards.h"

#include "error.h"
#include "thread.h"

#include <string.h>

/* The tasks of a bucket's step: composed when its rounds are known, from the
 * BEGIN that finds them out. */
static void compose(bucket *b)
{
	const gradcomp_plan *plan = b->part ? &b->part->plan : &b->plan;
	int n = 1;
	if (b->part) {
		b->tasks[n++] = (task){TASK_REDUCE, 0};
		b->tasks[n++] = (task){TASK_ENTER, 0};
	}
	for (uint32_t k = 0; k < plan->nrounds; k++) {
		b->tasks[n++] = (task){TASK_ENCODE, k};
		b->tasks[n++] = (task){TASK_EXCHANGE, k};
		b->tasks[n++] = (task){TASK_DECODE, k};
	}
	if (b->part) {
		b->tasks[n++] = (task){TASK_LEAVE, 0};
		b->tasks[n++] = (task){TASK_SPREAD, 0};
	}
	b->tasks[n++] = (task){TASK_FINISH, 0};
	b->ntasks = n;
}

static void push_compute(gradcomp_reducer *r, bucket *b)
{
	b->after = NULL;
	*r->queue_end = b;
	r->queue_end = &b->after;
	pthread_cond_signal(&r->compute_wake);
}

bucket *queue_take(gradcomp_reducer *r, bucket **at)
{
	bucket *b = *at;
	*at = b->after;
	if (!b->after)
		r->queue_end = at;
	return b;
}

void queue_admit(gradcomp_reducer *r)
{
	while (r->begun < r->nbuckets && r->buckets[r->begun].given == r->buckets[r->begun].pub.ntensors) {
		bucket *b = &r->buckets[r->begun];
		/* Always the same: then its workspace has grown when every bucket has been
		 * through once. Buckets end in their order, so another would not be free
		 * earlier. */
		slot *s = &r->slots[b->pub.index % REDUCER_SLOTS];
		if (s->taken)
			return;
		b->slot = s;
		s->taken = 1;
		b->tasks[0] = (task){TASK_BEGIN, 0};
		b->ntasks = 1;
		b->next = 0;
		r->begun++;
		push_compute(r, b);
	}
}

/* Tells the application about tensors [first, first + n), without the lock. */
static void tell(gradcomp_reducer *r, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err)
{
	for (uint32_t i = 0; r->done && i < n; i++)
		r->done(r->ctx, r->layout.ntensors - 1 - (first + i), status, err);
}

void queue_fail(gradcomp_reducer *r, gradcomp_status status, const gradcomp_error *err)
{
	gradcomp_error known;
	if (r->failed)
		return;
	/* A failure of another rank may be why this one failed: then it is the news. */
	r->failed = transport_failure(r->job->transport, &known);
	/* What this rank was at is said too, where the exchange has failed with the news. */
	r->failure = r->failed && !strncmp(err->text, known.text, strlen(known.text)) ? *err : known;
	if (!r->failed) {
		r->failed = status;
		error_set(&r->failure, status, "%s", err->text);
		job_fail(r->job, status, err->text);
	}
	r->callbacks++;
	pthread_cond_broadcast(&r->compute_wake);
	pthread_cond_broadcast(&r->exchange_wake);
	while (r->running)
		pthread_cond_wait(&r->step_over, &r->lock);
	pthread_mutex_unlock(&r->lock);
	gpu_drain(r->gpu);
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		if (r->given[i])
			tell(r, i, 1, r->failed, &r->failure);
	pthread_mutex_lock(&r->lock);
	r->callbacks--;
	pthread_cond_broadcast(&r->step_over);
}

/* With the lock held: the bucket's step is over. */
static void bucket_done(gradcomp_reducer *r, bucket *b)
{
	uint32_t first = b->pub.first, n = b->pub.ntensors;
	b->slot->taken = 0;
	b->slot = NULL;
	b->given = 0;
	b->over++;
	r->nfinished++;
	memset(r->given + first, 0, n * sizeof *r->given);
	if (r->nfinished == r->nbuckets) {
		r->stats.exposed_s += clock_now() - r->last_given;
		r->stats.steps++;
		r->stats.dense_bytes += 8.0 * (r->layout.nranks - 1) / r->layout.nranks * (double)r->layout.numel;
		r->step++;
		if (r->shards)
			shards_step(r);
		else
			held_step(r);
		r->ngiven = r->nfinished = r->begun = r->exchanging = 0;
		r->step_bad = 0;
	}
	queue_admit(r);
	r->callbacks++;
	pthread_mutex_unlock(&r->lock);
	tell(r, first, n, GRADCOMP_OK, NULL);
	pthread_mutex_lock(&r->lock);
	r->callbacks--;
	pthread_cond_broadcast(&r->step_over);
}

static void count_time(gradcomp_reducer *r, task_kind kind, double seconds)
{
	if (kind == TASK_BEGIN || kind == TASK_ENTER || kind == TASK_ENCODE)
		r->stats.encode_s += seconds;
	else if (task_exchanges(kind))
		r->stats.exchange_s += seconds;
	else
		r->stats.decode_s += seconds;
}

/* With the lock held, dropped while the task runs. Returns 0 when it failed. */
static int run_next(gradcomp_reducer *r, bucket *b)
{
	const task *t = &b->tasks[b->next++];
	gradcomp_error err = {0};
	double start = clock_now();
	r->running++;
	pthread_mutex_unlock(&r->lock);
	gradcomp_status st = task_run(r, b, t, &err);
	pthread_mutex_lock(&r->lock);
	r->running--;
	if (r->failed)
		pthread_cond_broadcast(&r->step_over);
	count_time(r, t->kind, clock_now() - start);
	if (st) {
		queue_fail(r, st, &err);
		return 0;
	}
	if (b->later)
		b->next--;
	else if (t->kind == TASK_BEGIN || t->kind == TASK_ENTER)
		compose(b);
	return !r->failed;
}

static void *compute_main(void *arg)
{
	gradcomp_reducer *r = arg;
	gpu_enter(r->gpu);
	pthread_mutex_lock(&r->lock);
	while (!r->stop && !r->failed) {
		bucket *b = r->queue;
		if (!b) {
			pthread_cond_wait(&r->compute_wake, &r->lock);
			continue;
		}
		if (r->gpu)
			b = gpu_next(r);
		else
			queue_take(r, &r->queue);
		if (r->failed)
			break;
		while (b->next < b->ntasks && !task_exchanges(b->tasks[b->next].kind))
			if (!run_next(r, b) || b->later)
				break;
		if (r->failed)
			break;
		if (b->later) {
			push_compute(r, b);
		} else if (b->next == b->ntasks) {
			bucket_done(r, b);
		} else {
			b->at_exchange = 1;
			pthread_cond_signal(&r->exchange_wake);
		}
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

static void *exchange_main(void *arg)
{
	gradcomp_reducer *r = arg;
	gpu_enter(r->gpu);
	pthread_mutex_lock(&r->lock);
	while (!r->stop && !r->failed) {
		bucket *b = r->exchanging < r->nbuckets ? &r->buckets[r->exchanging] : NULL;
		if (!b || !b->at_exchange) {
			pthread_cond_wait(&r->exchange_wake, &r->lock);
			continue;
		}
		b->at_exchange = 0;
		if (!run_next(r, b))
			break;
		if (b->bad) {
			b->next = b->ntasks - 1; /* on to FINISH */
			r->stats.nonfinite_steps += !r->step_bad;
			r->step_bad = 1;
		}
		/* Only the shard is given up: what was summed beside it is spread. */
		if (b->part && b->part->bad && b->next < b->ntasks - 3)
			b->next = b->ntasks - 3;
		if (b->next >= b->ntasks - (b->part ? 1 : 2))
			r->exchanging++;
		push_compute(r, b);
	}
	pthread_mutex_unlock(&r->lock);
	return NULL;
}

gradcomp_status queue_start(gradcomp_reducer *r, gradcomp_error *err)
{
	int rc;
	r->queue_end = &r->queue;
	rc = thread_start(&r->compute, compute_main, r);
	if (!rc) {
		r->threads = 1;
		rc = thread_start(&r->exchange, exchange_main, r);
		r->threads += !rc;
	}
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOMEM, "could not start the reducer's threads: %s", strerror(rc));
	return GRADCOMP_OK;
}

void queue_stop(gradcomp_reducer *r)
{
	pthread_mutex_lock(&r->lock);
	r->stop = 1;
	pthread_cond_broadcast(&r->compute_wake);
	pthread_cond_broadcast(&r->exchange_wake);
	pthread_mutex_unlock(&r->lock);
	if (r->threads > 0)
		pthread_join(r->compute, NULL);
	if (r->threads > 1)
		pthread_join(r->exchange, NULL);
}
