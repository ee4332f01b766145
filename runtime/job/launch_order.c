#include "job/launch_order.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/thread.h"
#include "job/job.h"

/* So long who joins waits for turns that other ranks have begun already. */
#define CATCH_UP_S 5.0

void launch_order_open(launch_order *o)
{
	*o = (launch_order){.all = NULL};
	pthread_mutex_init(&o->lock, NULL);
	thread_condition(&o->change);
}

void launch_order_close(launch_order *o)
{
	pthread_cond_destroy(&o->change);
	pthread_mutex_destroy(&o->lock);
}

/* Called with the lock held, which is dropped meanwhile: waits a while for a change. */
static gradcomp_status await_change(const launcher *l, gradcomp_error *err)
{
	launch_order *o = l->order;
	thread_wait(&o->change, &o->lock, 20);
	return transport_failure(l->group->job->transport, err);
}

/* The group has had one communicator without numbers: all ranks agree from which of its turns on it has them, and wait
 * until those before are over here. */
static gradcomp_status agree(const launcher *l, const coll_ctx *c, gradcomp_error *err)
{
	launch_order *o = l->order;
	launcher *first = NULL;
	int64_t from = 0;
	pthread_mutex_lock(&o->lock);
	l->group->turns.agreeing = true;
	for (launcher *at = o->all; at; at = at->next)
		if (at->group == l->group && at != l)
			first = at;
	if (first)
		from = (int64_t)first->turns;
	pthread_mutex_unlock(&o->lock);
	gradcomp_status st = c->collective->allreduce(c->instance, &from, 1, GRADCOMP_I64, GRADCOMP_MAX, 1.0, err);
	double until = clock_now() + CATCH_UP_S;
	pthread_mutex_lock(&o->lock);
	if (first)
		first->from = (uint64_t)from;
	l->group->turns.agreeing = false;
	pthread_cond_broadcast(&o->change);
	while (!st && first && (first->active || first->turns < first->from) && clock_now() < until)
		st = await_change(l, err);
	pthread_mutex_unlock(&o->lock);
	return st;
}

gradcomp_status launch_order_join(launcher *l, gradcomp_group *g, const coll_ctx *c, const device_calls *d,
                                  void *stream, gradcomp_error *err)
{
	launch_order *o = &g->job->order;
	*l = (launcher){.d = d, .stream = stream};
	gradcomp_status st = device_check(d->event(&l->event), "an event could not be made", err);
	if (st)
		return st;
	pthread_mutex_lock(&o->lock);
	uint32_t before = g->turns.joined++;
	l->order = o;
	l->group = g;
	l->from = before ? 0 : UINT64_MAX;
	l->next = o->all;
	o->all = l;
	pthread_mutex_unlock(&o->lock);
	return before == 1 ? agree(l, c, err) : GRADCOMP_OK;
}

void launch_order_leave(launcher *l)
{
	launch_order *o = l->order;
	if (o) {
		pthread_mutex_lock(&o->lock);
		launcher **at = &o->all;
		while (*at != l)
			at = &(*at)->next;
		*at = l->next;
		pthread_mutex_unlock(&o->lock);
	}
	if (l->event)
		l->d->event_free(l->event);
	*l = (launcher){.order = NULL};
}

/* All ranks have come: the first gives a number, and here it is waited for. */
static gradcomp_status take_number(const launcher *l, const coll_ctx *c, gradcomp_error *err)
{
	launch_order *o = l->order;
	launch_turns *t = &l->group->turns;
	uint64_t number = 0;
	gradcomp_status st = c->collective->barrier(c->instance, err);
	if (!st && !l->group->me) {
		pthread_mutex_lock(&o->lock);
		number = t->next++;
		pthread_mutex_unlock(&o->lock);
	}
	if (!st)
		st = c->collective->broadcast(c->instance, &number, sizeof number, 0, err);
	pthread_mutex_lock(&o->lock);
	while (!st && t->now != number)
		st = await_change(l, err);
	pthread_mutex_unlock(&o->lock);
	return st;
}

/* Called with the lock held. */
static const char *follow(launch_order *o, const launcher *own, void *stream)
{
	const char *why = NULL;
	for (launcher *l = o->all; !why && l; l = l->next) {
		if (l == own || !l->dirty)
			continue;
		why = l->d->record(l->event, l->stream);
		if (!why)
			why = l->d->follow(stream, l->event);
		l->dirty = false;
	}
	return why;
}

static gradcomp_status take_turn(launcher *l, const coll_ctx *c, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	pthread_mutex_lock(&l->order->lock);
	while (!st && l->group->turns.agreeing && l->from == UINT64_MAX)
		st = await_change(l, err);
	l->numbered = !st && l->turns >= l->from && c->collective->barrier && c->collective->broadcast;
	l->turns += !st;
	l->active = !st;
	pthread_mutex_unlock(&l->order->lock);
	return st || !l->numbered ? st : take_number(l, c, err);
}

gradcomp_status launch_order_begin(launcher *l, const coll_ctx *c, void *stream, bool within, gradcomp_error *err)
{
	gradcomp_status st = within ? GRADCOMP_OK : take_turn(l, c, err);
	pthread_mutex_lock(&l->order->lock);
	if (!st)
		st = device_check(follow(l->order, l, stream), "a stream could not be made to wait for another", err);
	l->dirty = !st && l->stream;
	if (l->dirty)
		l->stream = stream;
	pthread_mutex_unlock(&l->order->lock);
	if (st && !within)
		launch_order_end(l);
	return st;
}

void launch_order_end(launcher *l)
{
	launch_order *o = l->order;
	pthread_mutex_lock(&o->lock);
	l->group->turns.now += l->numbered;
	l->active = l->numbered = false;
	pthread_cond_broadcast(&o->change);
	pthread_mutex_unlock(&o->lock);
}
