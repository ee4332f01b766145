/* The table of the device, and whether it can run here. */
#include <stdio.h>

#define KERNEL(name) name##_cuda
#define KERNEL_DEVICE GRADCOMP_CUDA
#define random_normal KERNEL(random_normal)
#define random_indices KERNEL(random_indices)
#include "operators/cpu/kernels.h"

#include "operators/cuda/cuda_module.h"

static const gradcomp_operators table = KERNEL_TABLE;

GRADCOMP_EXPORT const cuda_module gradcomp_operators_cuda = {
	.struct_size = sizeof gradcomp_operators_cuda,
	.version = CUDA_MODULE_VERSION,
	.table = &table,
	.missing = cuda_missing,
};
