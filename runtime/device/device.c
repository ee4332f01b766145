/* The module of GPU memory and streams, device/cuda.so, loaded when it is first asked
 * for. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <time.h>

#include "config/config.h"
#include "device/device.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/module.h"

/* A device whose work does not end in this time is lost. */
#define DRAIN_SECONDS 30.0

static const device_calls *load(const config *c, gradcomp_error *err)
{
	const void *symbol = NULL;
	const device_calls *d;
	if (module_symbol(config_str(c, SET_GRADCOMP_PLUGIN_PATH), DEVICE_MODULE, DEVICE_SYMBOL, &symbol, err))
		return NULL;
	d = symbol;
	if (d->struct_size == sizeof *d && d->version == DEVICE_VERSION)
		return d;
	error_set(err, GRADCOMP_ERR_ABI, "%s is of version %u, this library wants %d: install both from one build",
	          DEVICE_MODULE, d->version, DEVICE_VERSION);
	return NULL;
}

static const device_calls *opened;

const device_calls *device_open(const config *c, gradcomp_error *err)
{
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	const device_calls *found;
	pthread_mutex_lock(&lock);
	if (!opened)
		opened = load(c, err);
	found = opened;
	pthread_mutex_unlock(&lock);
	return found;
}

gradcomp_status device_check(const char *why, const char *what, gradcomp_error *err)
{
	return why ? error_set(err, GRADCOMP_ERR_IO, "the CUDA device: %s: %s", what, why) : GRADCOMP_OK;
}

void device_until(bool (*is)(void *ctx), void *ctx, double seconds)
{
	static const struct timespec nap = {.tv_nsec = 20000};
	double until = clock_now() + seconds;
	while (!is(ctx) && clock_now() < until)
		nanosleep(&nap, NULL);
}

typedef struct awaiting {
	const device_calls *d;
	void *event;
	const device_watch *watch;
	const char *why;
	gradcomp_error *err;
	gradcomp_status st;
} awaiting;

static bool has_come(void *ctx)
{
	awaiting *a = ctx;
	int is = 0;
	a->why = a->d->test(a->event, &is);
	if (a->why || is)
		return true;
	a->st = a->watch->look(a->watch->ctx, a->err);
	return a->st != GRADCOMP_OK;
}

gradcomp_status device_await(const device_calls *d, void *event, const device_watch *watch, const char *what,
                             gradcomp_error *err)
{
	awaiting a = {d, event, watch, NULL, err, GRADCOMP_OK};
	if (watch && watch->look)
		device_until(has_come, &a, DEVICE_FOR_EVER);
	else
		a.why = d->wait(event);
	return a.st ? a.st : device_check(a.why, what, err);
}

gradcomp_status device_refuse_capture(const device_calls *d, void *stream, const char *tensor, gradcomp_error *err)
{
	int captures = 0;
	const char *why = d->captures(stream, &captures);
	if (!why && captures)
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"tensor '%s': the stream of gradients is being captured into a CUDA graph, which would replay "
			"the step without the host's part of it: its order among ranks, its number and its failures; "
			"capture the forward and backward pass, and give gradients outside",
			tensor);
	return device_check(why, "the stream of gradients", err);
}

gradcomp_status device_refuse_elsewhere(const device_calls *d, const void *p, int id, const char *tensor,
                                        gradcomp_error *err)
{
	int on;
	gradcomp_status st = device_check(d->where(p, &on), "memory of a gradient", err);
	if (st || on == id)
		return st;
	if (on >= 0)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "tensor '%s': its gradient is on CUDA device %d, and this reducer works on device %d: "
		                 "give it one there, or make a reducer for each device",
		                 tensor, on, id);
	return error_set(
		err, GRADCOMP_ERR_INVALID,
		"tensor '%s': its gradient is in host memory, and this reducer is for gradients on CUDA device %d: "
		"move it there, or make another reducer for those in host memory (device=GRADCOMP_HOST; in Python "
		"cuda=False)",
		tensor, id);
}

/* cuPointerGetAttribute() of CUDA's driver; NULL: no part of the program has loaded it. */
typedef int ask_driver(void *answer, int attribute, unsigned long long p);
static ask_driver *_Atomic driver;

enum { POINTER_MEMORY_TYPE = 2, POINTER_IS_MANAGED = 8, MEMORY_OF_DEVICE = 2 }; /* in cuda.h */

void device_find_driver(void)
{
	void *library = driver ? NULL : dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
	ask_driver *found = NULL;
	if (library)
		*(void **)&found = dlsym(library, "cuPointerGetAttribute");
	if (found)
		driver = found;
}

gradcomp_status device_refuse_memory(const void *p, const char *tensor, gradcomp_error *err)
{
	unsigned type = 0, managed = 0;
	ask_driver *ask = driver;
	if (!ask || ask(&type, POINTER_MEMORY_TYPE, (uintptr_t)p) || type != MEMORY_OF_DEVICE ||
	    ask(&managed, POINTER_IS_MANAGED, (uintptr_t)p) || managed)
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_INVALID,
		"tensor '%s': its gradient is in memory of a GPU, and this reducer is for gradients in host memory: "
		"make another one for those on the GPU (device=GRADCOMP_CUDA; in Python cuda=True)",
		tensor);
}

gradcomp_status device_let_follow(const device_calls *d, void *stream, void *event, gradcomp_error *err)
{
	int captures = 0;
	const char *why = d->captures(stream, &captures);
	if (!why && captures)
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"the stream that is to wait for results is being captured into a CUDA graph, which would "
			"replay without them: wait before the capture or after it");
	return device_check(why ? why : d->follow(stream, event), "a stream could not be made to wait for results",
	                    err);
}

typedef struct streams {
	const device_calls *d;
	void *const *at;
	size_t n;
} streams;

static bool idle(void *ctx)
{
	const streams *s = ctx;
	int is = 1;
	for (size_t i = 0; is && i < s->n; i++)
		if (s->at[i] && s->d->idle(s->at[i], &is))
			is = 1;
	return is;
}

bool device_streams_idle(const device_calls *d, void *const *at, size_t n)
{
	return idle(&(streams){d, at, n});
}

void device_drain(const device_calls *d, void *const *at, size_t n)
{
	device_until(idle, &(streams){d, at, n}, DRAIN_SECONDS);
}

/* NCCL and the operators move 16 bytes at a time. */
#define ALIGNMENT 16

gradcomp_status device_memory_check(const device_memory *m, gradcomp_error *err)
{
	if (!m->alloc == !m->release)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_INVALID,
	                 "of device_alloc and device_release only one is given: both, or neither");
}

const char *device_memory_take(const device_memory *m, void **p, size_t bytes, void *stream)
{
	*p = NULL;
	if (!m->alloc)
		return m->d->alloc(p, bytes);
	*p = m->alloc(m->ctx, bytes, stream);
	if (!*p)
		return "the program's device_alloc() gave none";
	if ((uintptr_t)*p % ALIGNMENT == 0)
		return NULL;
	m->release(m->ctx, *p);
	*p = NULL;
	return "what the program's device_alloc() gave does not begin at a multiple of 16 bytes";
}

void device_memory_give_back(const device_memory *m, void *p)
{
	if (!p)
		return;
	if (m->alloc)
		m->release(m->ctx, p);
	else
		m->d->release(p);
}

void *device_host_alloc(size_t bytes)
{
	void *p = NULL;
	if (opened->pin(&p, bytes ? bytes : 1))
		return NULL;
	return memset(p, 0, bytes);
}

void device_host_release(void *p)
{
	opened->unpin(p);
}
