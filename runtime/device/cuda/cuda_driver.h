/* A driver that this build's CUDA runtime cannot work with, in a sentence: for the modules that may be the first to ask
 * for it. */
#ifndef DEVICE_CUDA_CUDA_DRIVER_H
#define DEVICE_CUDA_CUDA_DRIVER_H

#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>

/* Writes why a first call of CUDA's has failed with `e`, or found no device (e is success), and what would be right. */
static inline void cuda_driver_why(cudaError_t e, char *why, size_t room)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	int driver = 0, runtime = 0;
	cudaDriverGetVersion(&driver);
	cudaRuntimeGetVersion(&runtime);
	cudaGetLastError();
	if (!driver)
		snprintf(why, room,
		         "there is no NVIDIA driver on this machine: start the job on nodes with GPUs, or install a "
		         "driver for CUDA %d",
		         runtime / 1000);
	else if (e == cudaErrorInsufficientDriver)
		snprintf(why, room,
		         "the NVIDIA driver of this machine is for CUDA %d.%d, gradcomp was compiled with CUDA %d.%d: "
		         "install a driver for CUDA %d, or compile gradcomp with a CUDA toolkit of %d",
		         driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10, runtime / 1000,
		         driver / 1000);
	else if (!e || e == cudaErrorNoDevice)
		snprintf(why, room,
		         "no CUDA device is visible to this rank (CUDA_VISIBLE_DEVICES%s%s): let each task have one "
		         "(srun --gpus-per-task=1)",
		         visible ? "=" : " is not set", visible ? visible : "");
	else
		snprintf(why, room, "%s", cudaGetErrorString(e));
}

#endif
