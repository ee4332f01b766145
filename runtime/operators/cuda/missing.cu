/* Asks if there is a device, and loads all kernels there. */
#include <atomic>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "operators/cuda/cuda_module.h"

/* All kernels of the module, by the name that a launch takes: what the compiler makes of a file tells CUDA's runtime of
 * each when the module is loaded. The linker sends that here (--wrap), so no kernel can be forgotten. */
static const char **kernels;
static size_t n_kernels;
static bool forgot;

extern "C" void __real___cudaRegisterFunction(void **, const char *, char *, const char *, int, uint3 *, uint3 *,
                                              dim3 *, dim3 *, int *);
extern "C" void __wrap___cudaRegisterFunction(void **module, const char *kernel, char *device, const char *name,
                                              int threads, uint3 *thread, uint3 *block, dim3 *blocks, dim3 *grid,
                                              int *warp)
{
	const char **more = static_cast<const char **>(realloc(kernels, (n_kernels + 1) * sizeof *kernels));
	forgot |= !more;
	kernels = more ? more : kernels;
	if (more)
		kernels[n_kernels++] = kernel;
	__real___cudaRegisterFunction(module, kernel, device, name, threads, thread, block, blocks, grid, warp);
}

extern "C" GRADCOMP_EXPORT size_t gradcomp_cuda_kernels(void);
size_t gradcomp_cuda_kernels(void)
{
	return n_kernels;
}

/* CUDA loads a kernel when it is first asked for, which may wait for all that runs: work that waits for other ranks,
 * who wait for this one. */
static cudaError_t load(int id)
{
	static std::atomic<uint64_t> loaded;
	cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	cudaError_t e = cudaSuccess;
	if (id < 64 && loaded >> id & 1)
		return e;
	const bool changed = !cudaThreadExchangeStreamCaptureMode(&mode);
	for (size_t i = 0; !e && i < n_kernels; i++) {
		cudaFuncAttributes attributes;
		e = cudaFuncGetAttributes(&attributes, kernels[i]);
	}
	if (changed)
		cudaThreadExchangeStreamCaptureMode(&mode);
	if (!e && id < 64)
		loaded |= uint64_t(1) << id;
	return e;
}

extern "C" int cuda_missing(char *why, size_t room)
{
	int devices = 0, driver = 0, id = 0;
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
	e = cudaGetDevice(&id);
	if (!e)
		e = forgot ? cudaErrorMemoryAllocation : load(id);
	if (e) {
		snprintf(why, room, "the CUDA device cannot run this build's kernels: %s", cudaGetErrorString(e));
		cudaGetLastError();
		return 1;
	}
	return 0;
}
