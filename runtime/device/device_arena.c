#include "device/device_arena.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

enum { STREAMS = 4 };

/* Memory that is left to be freed when all events have come. */
struct device_arena_left {
	device_arena_left *next;
	void *p, *after[STREAMS];
};

/* All streams of an arena, as an array that lives as long as the block does. */
#define STREAMS_OF(a) ((void *const[STREAMS]){(a)->compute, (a)->behind, (a)->exchange[0], (a)->exchange[1]})

gradcomp_status device_arena_open(const device_memory *m, device_arena **out, gradcomp_error *err)
{
	const device_calls *d = m->d;
	device_arena *a = *out = calloc(1, sizeof *a);
	if (!a)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a reducer");
	a->memory = *m;
	pthread_mutex_init(&a->lock, NULL);
	const char *why = d->current(&a->id);
	if (why)
		return device_check(why, "it cannot be used", err);
	why = d->stream(&a->compute, 0);
	if (!why)
		why = d->stream(&a->behind, 0);
	for (int k = 0; !why && k < 2; k++)
		why = d->stream(&a->exchange[k], 1);
	if (!why)
		why = d->event(&a->came);
	return device_check(why, "a stream could not be made", err);
}

static void forget(device_arena *a, device_arena_left *l)
{
	device_memory_give_back(&a->memory, l->p);
	for (int k = 0; k < STREAMS; k++)
		a->memory.d->event_free(l->after[k]);
	free(l);
}

void device_arena_close(device_arena *a)
{
	if (!a)
		return;
	device_arena_flush(a);
	for (device_arena_left *next; a->left; a->left = next) {
		next = a->left->next;
		forget(a, a->left);
	}
	a->memory.d->event_free(a->came);
	for (int k = 0; k < STREAMS; k++)
		a->memory.d->stream_free(STREAMS_OF(a)[k]);
	pthread_mutex_destroy(&a->lock);
	free(a);
}

void device_arena_bind(const device_arena *a)
{
	if (a)
		a->memory.d->use(a->id);
}

const char *device_arena_alloc(device_arena *a, void **p, size_t bytes)
{
	device_arena_sweep(a);
	return device_memory_take(&a->memory, p, bytes, a->compute);
}

static bool is_over(const device_arena *a, const device_arena_left *l)
{
	int done = 1;
	for (int k = 0; done && k < STREAMS; k++)
		if (a->memory.d->test(l->after[k], &done))
			done = 1; /* the device is lost */
	return done;
}

void device_arena_sweep(device_arena *a)
{
	device_arena_left *over = NULL, **at = &a->left, *l;
	if (!__atomic_load_n(&a->left, __ATOMIC_RELAXED))
		return;
	pthread_mutex_lock(&a->lock);
	while ((l = *at))
		if (is_over(a, l)) {
			__atomic_store_n(at, l->next, __ATOMIC_RELAXED);
			l->next = over;
			over = l;
		} else {
			at = &l->next;
		}
	pthread_mutex_unlock(&a->lock);
	for (device_arena_left *next; over; over = next) {
		next = over->next;
		forget(a, over);
	}
}

void device_arena_release(device_arena *a, void *p)
{
	void *const *streams = STREAMS_OF(a);
	device_arena_left *l;
	const char *why = NULL;
	if (!p)
		return;
	l = calloc(1, sizeof *l);
	for (int k = 0; l && !why && k < STREAMS; k++) {
		why = a->memory.d->event(&l->after[k]);
		if (!why)
			why = a->memory.d->record(l->after[k], streams[k]);
	}
	if (!l || why) {
		device_arena_flush(a);
		device_memory_give_back(&a->memory, p);
		for (int k = 0; l && k < STREAMS; k++)
			a->memory.d->event_free(l->after[k]);
		free(l);
		return;
	}
	l->p = p;
	pthread_mutex_lock(&a->lock);
	l->next = a->left;
	__atomic_store_n(&a->left, l, __ATOMIC_RELAXED);
	pthread_mutex_unlock(&a->lock);
	device_arena_sweep(a);
}

gradcomp_status device_arena_copy(device_arena *a, void *to, const void *from, size_t bytes, gradcomp_error *err)
{
	static const char what[] = "the reducer's state could not be copied";
	if (!a) {
		memcpy(to, from, bytes);
		return GRADCOMP_OK;
	}
	const char *why = a->memory.d->record(a->came, a->behind);
	if (!why)
		why = a->memory.d->follow(a->compute, a->came);
	if (!why)
		why = a->memory.d->copy(a->compute, to, from, bytes);
	gradcomp_status st = device_check(why, what, err);
	return st ? st : device_arena_settle(a, a->compute, a->came, NULL, what, err);
}

bool device_arena_idle(const device_arena *a)
{
	return !a || device_streams_idle(a->memory.d, STREAMS_OF(a), STREAMS);
}

void device_arena_flush(const device_arena *a)
{
	if (a)
		device_drain(a->memory.d, STREAMS_OF(a), STREAMS);
}

typedef struct draining {
	const device_arena *a;
	const device_watch *watch;
	gradcomp_error *err;
	gradcomp_status st;
} draining;

static bool drained(void *ctx)
{
	draining *d = ctx;
	if (device_arena_idle(d->a))
		return true;
	d->st = d->watch->look(d->watch->ctx, d->err);
	return d->st != GRADCOMP_OK;
}

gradcomp_status device_arena_drain(const device_arena *a, const device_watch *watch, gradcomp_error *err)
{
	draining d = {a, watch, err, GRADCOMP_OK};
	device_until(drained, &d, DEVICE_FOR_EVER);
	return d.st;
}

gradcomp_status device_arena_settle(const device_arena *a, void *stream, void *event, const device_watch *watch,
                                    const char *what, gradcomp_error *err)
{
	gradcomp_status st = device_check(a->memory.d->record(event, stream), what, err);
	return st ? st : device_await(a->memory.d, event, watch, what, err);
}
