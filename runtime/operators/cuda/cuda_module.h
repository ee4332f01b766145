/* Between the library and its CUDA module, operators/cuda.so: one build. */
#ifndef OPERATORS_CUDA_CUDA_MODULE_H
#define OPERATORS_CUDA_CUDA_MODULE_H

#include "gradcomp/operators.h"

typedef struct cuda_module {
	uint32_t struct_size;
	uint32_t version; /* CUDA_MODULE_VERSION */
	const gradcomp_operators *table;
	/* Why kernels cannot run here, in at most `room` bytes; 0: they can. The first
	 * call of the CUDA library is made here, not when the module is loaded. */
	int (*missing)(char *why, size_t room);
} cuda_module;

#define CUDA_MODULE_VERSION 1
#define CUDA_MODULE_SYMBOL "gradcomp_operators_cuda"

#ifdef __cplusplus
extern "C"
#endif
	int
	cuda_missing(char *why, size_t room);

#endif
