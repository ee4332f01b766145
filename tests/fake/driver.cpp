/* libcuda.so.1, as far as gradcomp asks CUDA's driver itself: whose memory a pointer is. */
#include <cuda_runtime_api.h>

enum { MEMORY_TYPE = 2, IS_MANAGED = 8, OF_HOST = 1, OF_DEVICE = 2, INVALID = 1 };

extern "C" int cuPointerGetAttribute(void *answer, int attribute, unsigned long long p)
{
	cudaPointerAttributes a;
	if (cudaPointerGetAttributes(&a, reinterpret_cast<void *>(p)) || a.type == cudaMemoryTypeUnregistered)
		return INVALID;
	*static_cast<unsigned *>(answer) = attribute == IS_MANAGED
	                                           ? a.type == cudaMemoryTypeManaged
	                                           : unsigned(a.type == cudaMemoryTypeHost ? OF_HOST : OF_DEVICE);
	return attribute == MEMORY_TYPE || attribute == IS_MANAGED ? 0 : INVALID;
}
