/* Asks if there is a device. */
#include <cuda_runtime.h>
#include <stdio.h>

#include "operators/cuda/cuda_module.h"

static __global__ void nothing()
{
}

extern "C" int cuda_missing(char *why, size_t room)
{
	int devices = 0, driver = 0;
	cudaError_t e = cudaDriverGetVersion(&driver);
	if (!e && !driver) {
		snprintf(why, room, "there is no CUDA driver on this machine");
		return 1;
	}
	e = cudaGetDeviceCount(&devices);
	if (e || !devices) {
		snprintf(why, room, "there is no CUDA device: %s", e ? cudaGetErrorString(e) : "none is visible");
		cudaGetLastError();
		return 1;
	}
	cudaFuncAttributes attributes;
	e = cudaFuncGetAttributes(&attributes, nothing);
	if (e) {
		snprintf(why, room, "the CUDA device cannot run this build's kernels: %s", cudaGetErrorString(e));
		cudaGetLastError();
		return 1;
	}
	return 0;
}
