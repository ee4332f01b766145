/* Memory, streams and events by the CUDA runtime, which is linked into this module
 * and finds the driver when it is first called. */
#include <cuda_runtime_api.h>
#include <sched.h>
#include <time.h>

#include "device/cuda/cuda_driver.h"
#include "device/device.h"

#define SPIN_NS 50000

/* An error is reported once: what cudaGetLastError() finds next is somebody else's. */
static const char *said(cudaError_t e)
{
	if (e == cudaSuccess)
		return NULL;
	cudaGetLastError();
	return cudaGetErrorString(e);
}

/* While a thread captures a stream into a graph, as PyTorch's torch.cuda.graph() does, CUDA refuses others what
 * is not put on a stream, and spoils the graph; unless they say that it has nothing to do with it. Ours never has.
 * Returns the thread's mode so far, to be set again on a thread of the program's. */
static enum cudaStreamCaptureMode mode_set(enum cudaStreamCaptureMode mode)
{
	return cudaThreadExchangeStreamCaptureMode(&mode) ? cudaStreamCaptureModeGlobal : mode;
}

static enum cudaStreamCaptureMode relax(void)
{
	return mode_set(cudaStreamCaptureModeRelaxed);
}

/* Ends what relax() has begun; returns what was said in between. */
static cudaError_t again(enum cudaStreamCaptureMode mode, cudaError_t e)
{
	mode_set(mode);
	return e;
}

static const char *device_current(int *id)
{
	static _Thread_local char why[320];
	int n = 0;
	const cudaError_t e = cudaGetDeviceCount(&n);
	if (!e && n)
		return said(cudaGetDevice(id));
	cuda_driver_why(e, why, sizeof why);
	return why;
}

static const char *device_where(const void *p, int *device)
{
	struct cudaPointerAttributes a;
	const enum cudaStreamCaptureMode mode = relax();
	const char *why = said(again(mode, cudaPointerGetAttributes(&a, p)));
	*device = why || a.type != cudaMemoryTypeDevice ? -1 : a.device;
	return why || a.type != cudaMemoryTypeManaged ? why : said(cudaGetDevice(device));
}

static const char *device_use(int id)
{
	relax();
	return said(cudaSetDevice(id));
}

static const char *device_alloc(void **p, size_t bytes)
{
	const enum cudaStreamCaptureMode mode = relax();
	return said(again(mode, cudaMalloc(p, bytes)));
}

static void device_release(void *p)
{
	const enum cudaStreamCaptureMode mode = relax();
	again(mode, cudaFree(p));
}

static const char *device_pin(void **p, size_t bytes)
{
	const enum cudaStreamCaptureMode mode = relax();
	return said(again(mode, cudaHostAlloc(p, bytes, cudaHostAllocPortable)));
}

static void device_unpin(void *p)
{
	const enum cudaStreamCaptureMode mode = relax();
	again(mode, p ? cudaFreeHost(p) : cudaSuccess);
}

static const char *device_stream(void **stream, int urgent)
{
	cudaStream_t s;
	const enum cudaStreamCaptureMode mode = relax();
	int least = 0, most = 0;
	const char *why = said(cudaDeviceGetStreamPriorityRange(&least, &most));
	if (!why)
		why = said(cudaStreamCreateWithPriority(&s, cudaStreamNonBlocking, urgent ? most : least));
	mode_set(mode);
	if (!why)
		*stream = s;
	return why;
}

static void device_stream_free(void *stream)
{
	if (stream)
		cudaStreamDestroy(stream);
}

static const char *device_event(void **event)
{
	cudaEvent_t e;
	const char *why = said(cudaEventCreateWithFlags(&e, cudaEventDisableTiming | cudaEventBlockingSync));
	if (!why)
		*event = e;
	return why;
}

static const char *device_timer(void **event)
{
	cudaEvent_t e;
	const char *why = said(cudaEventCreateWithFlags(&e, cudaEventBlockingSync));
	if (!why)
		*event = e;
	return why;
}

static const char *device_elapsed(void *from, void *to, double *seconds)
{
	float ms = 0;
	const char *why = said(cudaEventElapsedTime(&ms, from, to));
	*seconds = 1e-3 * (double)ms;
	return why;
}

static const char *device_idle(void *stream, int *is)
{
	const enum cudaStreamCaptureMode mode = relax();
	cudaError_t e = again(mode, cudaStreamQuery(stream));
	*is = e == cudaSuccess;
	return e == cudaErrorNotReady ? NULL : said(e);
}

static const char *device_captures(void *stream, int *is)
{
	enum cudaStreamCaptureStatus state = cudaStreamCaptureStatusNone;
	const char *why = said(cudaStreamIsCapturing(stream, &state));
	*is = state != cudaStreamCaptureStatusNone;
	return why;
}

static void device_event_free(void *event)
{
	if (event)
		cudaEventDestroy(event);
}

static const char *device_record(void *event, void *stream)
{
	return said(cudaEventRecord(event, stream));
}

static const char *device_follow(void *stream, void *event)
{
	return said(cudaStreamWaitEvent(stream, event, 0));
}

static const char *device_test(void *event, int *done)
{
	const enum cudaStreamCaptureMode mode = relax();
	cudaError_t e = again(mode, cudaEventQuery(event));
	*done = e == cudaSuccess;
	return e == cudaErrorNotReady ? NULL : said(e);
}

static long long now_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000LL + t.tv_nsec;
}

static const char *device_wait(void *event)
{
	long long until = now_ns() + SPIN_NS;
	const char *why = NULL;
	int done = 0;

	while (!why && !done && now_ns() < until) {
		why = device_test(event, &done);
		sched_yield();
	}
	if (why || done)
		return why;
	const enum cudaStreamCaptureMode mode = relax();
	return said(again(mode, cudaEventSynchronize(event)));
}

static const char *device_copy(void *stream, void *to, const void *from, size_t bytes)
{
	return bytes ? said(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream)) : NULL;
}

static const char *device_copy_rows(void *stream, void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                    size_t width, size_t rows)
{
	if (!rows)
		return NULL;
	return said(cudaMemcpy2DAsync(to, to_pitch, from, from_pitch, width, rows, cudaMemcpyDefault, stream));
}

static const char *device_zero(void *stream, void *p, size_t bytes)
{
	return bytes ? said(cudaMemsetAsync(p, 0, bytes, stream)) : NULL;
}

GRADCOMP_EXPORT const device_calls gradcomp_device_cuda = {
	.struct_size = sizeof gradcomp_device_cuda,
	.version = DEVICE_VERSION,
	.current = device_current,
	.use = device_use,
	.where = device_where,
	.alloc = device_alloc,
	.release = device_release,
	.pin = device_pin,
	.unpin = device_unpin,
	.stream = device_stream,
	.stream_free = device_stream_free,
	.event = device_event,
	.timer = device_timer,
	.elapsed = device_elapsed,
	.idle = device_idle,
	.captures = device_captures,
	.event_free = device_event_free,
	.record = device_record,
	.follow = device_follow,
	.test = device_test,
	.wait = device_wait,
	.copy = device_copy,
	.copy_rows = device_copy_rows,
	.zero = device_zero,
};
