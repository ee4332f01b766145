/* What the CUDA module's own files take of cuda_runtime.h, for those that the
 * fake compiles as C++. */
#ifndef TESTS_FAKE_INCLUDE_CUDA_RUNTIME_H
#define TESTS_FAKE_INCLUDE_CUDA_RUNTIME_H

#include <cuda_runtime_api.h>

struct uint3 {
	unsigned x, y, z;
};
struct dim3 {
	unsigned x, y, z;
};

/* The compiler's call for every kernel of a module. The fake keeps `kernel`. */
extern "C" void __cudaRegisterFunction(void **module, const char *kernel, char *device, const char *name, int threads,
                                       uint3 *thread, uint3 *block, dim3 *blocks, dim3 *grid, int *warp);

#endif
