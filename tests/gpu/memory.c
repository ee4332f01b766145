/* A real device. */
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/device_memory.h"

static void must(cudaError_t e, const char *what)
{
	if (e) {
		printf("Bail out! %s: %s\n", what, cudaGetErrorString(e));
		exit(1);
	}
}

const gradcomp_operators *device_table(const char **why)
{
	static gradcomp_error err;
	const gradcomp_operators *table = operators_cuda(&err);
	*why = err.text;
	return table;
}

const int device_can_fail = 0;

void device_fail_launch(long k)
{
	(void)k;
}

long device_queued(void)
{
	return 0;
}

int device_moved(long *read, long *written)
{
	(void)read, (void)written;
	return 0;
}

void *device_alloc(size_t bytes)
{
	void *p = NULL;
	must(cudaMalloc(&p, bytes ? bytes : 1), "cudaMalloc");
	/* Rubbish. But a tool that looks for reads of memory that nobody wrote finds none then. */
	if (!getenv("GRADCOMP_TEST_UNWRITTEN"))
		must(cudaMemset(p, 0xa7, bytes), "cudaMemset");
	return p;
}

void device_free(void *p)
{
	must(cudaFree(p), "cudaFree");
}

void to_device(void *to, const void *from, size_t bytes)
{
	if (bytes)
		must(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice), "copy to the device");
}

void from_device(void *to, const void *from, size_t bytes)
{
	must(cudaGetLastError(), "a launch");
	must(cudaDeviceSynchronize(), "the device");
	if (bytes)
		must(cudaMemcpy(to, from, bytes, cudaMemcpyDeviceToHost), "copy from the device");
}

void device_copy(void *to, const void *from, size_t bytes)
{
	must(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, NULL), "a copy on the device");
}

double device_seconds(void (*work)(void *), void *ctx, int repeat)
{
	cudaEvent_t begin, end;
	float ms = 0;
	must(cudaEventCreate(&begin), "event");
	must(cudaEventCreate(&end), "event");
	work(ctx);
	must(cudaEventRecord(begin, 0), "event");
	for (int i = 0; i < repeat; i++)
		work(ctx);
	must(cudaEventRecord(end, 0), "event");
	must(cudaEventSynchronize(end), "event");
	must(cudaEventElapsedTime(&ms, begin, end), "event");
	cudaEventDestroy(begin);
	cudaEventDestroy(end);
	return ms / 1e3 / repeat;
}
