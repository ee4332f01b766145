/* Many matrices of one shape: their pointers travel as arguments of the kernel, so
 * many at a time. */
#ifndef OPERATORS_CUDA_BATCH_H
#define OPERATORS_CUDA_BATCH_H

#include "operators/cuda/cuda_device.h"

enum { BATCH = 96 };

template <int ARRAYS> struct matrices {
	float *at[ARRAYS][BATCH];
};

/* Calls with(part, first, count) for up to BATCH matrices at a time. An array that is
 * NULL gives NULLs. */
template <int ARRAYS, class F>
static void in_parts(const float *const *const (&from)[ARRAYS], size_t count, const F &with)
{
	for (size_t i = 0; i < count; i += BATCH) {
		matrices<ARRAYS> part;
		const size_t some = count - i < BATCH ? count - i : size_t(BATCH);
		for (int a = 0; a < ARRAYS; a++)
			for (size_t j = 0; j < BATCH; j++)
				part.at[a][j] = from[a] && j < some ? const_cast<float *>(from[a][i + j]) : nullptr;
		with(part, i, unsigned(some));
	}
}

/* Runs statement call(R) with R the least power of two that is not below r. */
#define WITH_RANK(r, call) \
	switch ((r) > 32 ? 64 : (r) > 16 ? 32 : (r) > 8 ? 16 : (r) > 4 ? 8 : (r) > 2 ? 4 : (r)) { \
	case 1: \
		call(1); \
		break; \
	case 2: \
		call(2); \
		break; \
	case 4: \
		call(4); \
		break; \
	case 8: \
		call(8); \
		break; \
	case 16: \
		call(16); \
		break; \
	case 32: \
		call(32); \
		break; \
	default: \
		call(64); \
	}

#endif
