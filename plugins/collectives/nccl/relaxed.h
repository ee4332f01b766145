/* Calls that CUDA refuses while the program captures a stream into a graph, for which they spoil the graph, unless
 * the calling thread says that it has nothing to do with it; nothing here has. As CUDA's, from any thread. */
#ifndef PLUGINS_COLLECTIVES_NCCL_RELAXED_H
#define PLUGINS_COLLECTIVES_NCCL_RELAXED_H

#include <cuda_runtime_api.h>

#define RELAXED(function, parameters, arguments) \
	static inline cudaError_t function##_relaxed parameters \
	{ \
		enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed; \
		const int changed = !cudaThreadExchangeStreamCaptureMode(&mode); \
		const cudaError_t e = function arguments; \
		if (changed) \
			cudaThreadExchangeStreamCaptureMode(&mode); \
		return e; \
	}
RELAXED(cudaStreamQuery, (cudaStream_t s), (s))
RELAXED(cudaEventQuery, (cudaEvent_t event), (event))
RELAXED(cudaMalloc, (void **p, size_t bytes), (p, bytes))
RELAXED(cudaFree, (void *p), (p))
#undef RELAXED

#endif
