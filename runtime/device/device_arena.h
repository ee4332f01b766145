/* The memory that somebody has on a device, and the streams that work on it. Memory that is given back
 * goes when the streams have done what they had by then; nobody waits for that. */
#ifndef DEVICE_ARENA_H
#define DEVICE_ARENA_H

#include "device/device.h"

#include <pthread.h>

typedef struct device_arena_left device_arena_left;

typedef struct device_arena {
	device_memory memory;
	int id;                  /* the device's number */
	void *compute, *behind;  /* streams: for what is to be exchanged, and for what has been */
	void *exchange[2];       /* streams: what is there goes first, since peers wait for it */
	void *came;              /* event of device_arena_copy() */
	device_arena_left *left; /* given back, and not gone yet; under the lock */
	pthread_mutex_t lock;
} device_arena;

/* On the calling thread's device; m->d is open. *out is to be closed, or NULL, either way. */
gradcomp_status device_arena_open(const device_memory *m, device_arena **out, gradcomp_error *err);
/* Waits for its streams, and frees all that was given back. NULL is fine. */
void device_arena_close(device_arena *a);
/* Makes the calling thread work on its device from now on. NULL is fine. */
void device_arena_bind(const device_arena *a);

/* Memory of the device, from any thread; what the device has said, or NULL. */
const char *device_arena_alloc(device_arena *a, void **p, size_t bytes);
/* NULL for `p` is fine. */
void device_arena_release(device_arena *a, void *p);
/* Gives back to the device all that may go now. */
void device_arena_sweep(device_arena *a);

/* Either side is memory of the host. It has been copied when the call returns. NULL for an arena: so are both. When
 * no other thread copies. */
gradcomp_status device_arena_copy(device_arena *a, void *to, const void *from, size_t bytes, gradcomp_error *err);
/* True when nothing is on its streams, when they cannot be asked, and of NULL. */
bool device_arena_idle(const device_arena *a);
/* Returns when that is so, or the device is lost. */
void device_arena_flush(const device_arena *a);
/* The same, but it waits for as long as `watch` says OK. */
gradcomp_status device_arena_drain(const device_arena *a, const device_watch *watch, gradcomp_error *err);
/* When what `stream` has by now has been done; `event` is free for that. See device_await(). */
gradcomp_status device_arena_settle(const device_arena *a, void *stream, void *event, const device_watch *watch,
                                    const char *what, gradcomp_error *err);

#endif
