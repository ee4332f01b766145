/* Memory, streams and events of GPUs, for the runtime itself. They come from a module,
 * device/cuda.so, that is loaded when a job first has gradients on a GPU: libgradcomp
 * is linked with nothing of CUDA's.
 *
 * Functions that can fail return NULL, or a few words of CUDA's. They act on the
 * device of the calling thread, see use(), and may be called while the program captures a stream of its own
 * into a graph, which they neither fail for nor spoil. */
#ifndef DEVICE_DEVICE_H
#define DEVICE_DEVICE_H

#include <stdbool.h>

#include "gradcomp/abi.h"

typedef struct device_calls {
	uint32_t struct_size;
	uint32_t version; /* DEVICE_VERSION */

	/* Tells the device of the calling thread. A thread begins with device 0. */
	const char *(*current)(int *id);
	/* First of all on a thread of gradcomp's own: captures of the program's are nothing to it from then on. */
	const char *(*use)(int id);
	/* Tells the number of the device whose memory p is in; -1: it is memory of the host. What CUDA moves by itself is
	 * the thread's own device's. */
	const char *(*where)(const void *p, int *device);

	const char *(*alloc)(void **p, size_t bytes);
	/* Waits for the whole device. NULL is fine. */
	void (*release)(void *p);
	/* Host memory that the device reads and writes while the host goes on. */
	const char *(*pin)(void **p, size_t bytes);
	void (*unpin)(void *p);

	/* Streams that do not wait for the default one; work on an urgent one goes before that on
	 * others where the device has room for one only. NULL may be freed. */
	const char *(*stream)(void **stream, int urgent);
	void (*stream_free)(void *stream);
	const char *(*event)(void **event);
	/* Makes an event that also notes the time. */
	const char *(*timer)(void **event);
	/* Seconds between two of those, both of which have come. */
	const char *(*elapsed)(void *from, void *to, double *seconds);
	void (*event_free)(void *event);
	/* *is: nothing is on the stream that it has not done. */
	const char *(*idle)(void *stream, int *is);
	/* *is: what is put on the stream now is recorded into a graph. */
	const char *(*captures)(void *stream, int *is);
	/* The event is what has been put on the stream so far. */
	const char *(*record)(void *event, void *stream);
	/* Makes all that is put on the stream from now on come after the event. */
	const char *(*follow)(void *stream, void *event);
	const char *(*test)(void *event, int *done);
	/* Returns when the event has come. Sleeps after a short spin. */
	const char *(*wait)(void *event);

	/* On a stream; either side is memory of the device or of the host. */
	const char *(*copy)(void *stream, void *to, const void *from, size_t bytes);
	/* Copies `rows` rows of `width` bytes, the next one `pitch` bytes on. */
	const char *(*copy_rows)(void *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch,
	                         size_t width, size_t rows);
	const char *(*zero)(void *stream, void *p, size_t bytes);
} device_calls;

#define DEVICE_VERSION 3
#define DEVICE_MODULE "device/cuda.so"
#define DEVICE_SYMBOL "gradcomp_device_cuda"

/* Device memory, and where it comes from: the program's allocator, or CUDA's where .alloc is NULL. */
typedef struct device_memory {
	const device_calls *d;
	void *(*alloc)(void *ctx, size_t bytes, void *stream);
	void (*release)(void *ctx, void *p);
	void *ctx;
} device_memory;
/* INVALID where the program has given one function of the two. */
gradcomp_status device_memory_check(const device_memory *m, gradcomp_error *err);
/* *p, NULL on failure, begins at a multiple of 16 bytes; its first work is put on `stream`. */
const char *device_memory_take(const device_memory *m, void **p, size_t bytes, void *stream);
/* When no work on it is left. NULL is fine. */
void device_memory_give_back(const device_memory *m, void *p);

struct config;
/* Loads the module, for ever. NULL and the reason in *err where there is none. Any thread. */
const device_calls *device_open(const struct config *c, gradcomp_error *err);
/* Turns what one of its functions has said into a status: NULL is OK, other text an error that begins with `what`. */
gradcomp_status device_check(const char *why, const char *what, gradcomp_error *err);
/* Asks until it is so, or for so many seconds, and sleeps a little in between. Any thread. */
void device_until(bool (*is)(void *ctx), void *ctx, double seconds);
#define DEVICE_FOR_EVER 1e300
/* Called now and then by a thread that waits for a device: whether what it waits for may still come. */
typedef struct device_watch {
	gradcomp_status (*look)(void *ctx, gradcomp_error *err);
	void *ctx;
} device_watch;
/* Returns when the event has come, or `watch` has failed. NULL for that, or for its look(): what is on the device
 * comes to an end by itself, and is waited for as wait() does. `what` begins the error. */
gradcomp_status device_await(const device_calls *d, void *event, const device_watch *watch, const char *what,
                             gradcomp_error *err);
/* UNSUPPORTED where the gradient of that tensor is made by a replay of a graph that `stream` is being captured into. */
gradcomp_status device_refuse_capture(const device_calls *d, void *stream, const char *tensor, gradcomp_error *err);
/* INVALID where the gradient of that tensor, at p, is not in memory of device `id`, on which the reducer works. */
gradcomp_status device_refuse_elsewhere(const device_calls *d, const void *p, int id, const char *tensor,
                                        gradcomp_error *err);
/* INVALID where p, the gradient of that tensor, is in memory of a GPU and the reducer works on the host. Asks the driver
 * that the process had when device_find_driver() last looked; where it had none, nothing is. Any thread. */
gradcomp_status device_refuse_memory(const void *p, const char *tensor, gradcomp_error *err);
void device_find_driver(void);
/* Makes the program's stream wait for results, as follow() does; UNSUPPORTED where it is being captured: no replay would
 * wait. */
gradcomp_status device_let_follow(const device_calls *d, void *stream, void *event, gradcomp_error *err);
/* Returns true when nothing is on any of the n streams; an error counts as yes, and so does NULL for a stream. */
bool device_streams_idle(const device_calls *d, void *const *streams, size_t n);
/* Returns when that is so, or the device is lost: what is on it does not end. */
void device_drain(const device_calls *d, void *const *streams, size_t n);
/* gradcomp_host.alloc() and release() of plugins that work on a device, once it is open: pinned
 * memory, so that a stream reads and writes it while the host goes on. */
void *device_host_alloc(size_t bytes);
void device_host_release(void *p);

#endif
