/* Asks if there is a device, and loads all kernels there. */
#include <atomic>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "device/cuda/cuda_driver.h"
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

/* Says why no kernel of the module runs on the device; `e` is what CUDA says. */
static void not_these_kernels(cudaError_t e, int id, char *why, size_t room)
{
	cudaDeviceProp p;
	int driver = 0, runtime = 0;
	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	if ((e != cudaErrorNoKernelImageForDevice && e != cudaErrorUnsupportedPtxVersion) ||
	    cudaGetDeviceProperties(&p, id))
		snprintf(why, room, "the CUDA device cannot run this build's kernels: %s", cudaGetErrorString(e));
	else
		snprintf(why, room,
		         "this build has no kernels for a GPU of compute capability %d.%d that a driver for CUDA %d.%d "
		         "can load: install a driver for CUDA %d.%d, or compile gradcomp for sm_%d%d",
		         p.major, p.minor, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10,
		         p.major, p.minor);
	cudaGetLastError();
}

extern "C" int cuda_missing(char *why, size_t room)
{
	int devices = 0, id = 0;
	cudaError_t e = cudaGetDeviceCount(&devices);
	if (e || !devices) {
		cuda_driver_why(e, why, room);
		return 1;
	}
	e = cudaGetDevice(&id);
	if (!e)
		e = forgot ? cudaErrorMemoryAllocation : load(id);
	if (e)
		not_these_kernels(e, id, why, room);
	return e != cudaSuccess;
}
