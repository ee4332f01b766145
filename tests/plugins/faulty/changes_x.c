/* decode-only: encode() scales the gradient where it lies. */
#define FAULT_NAME "changes_x"
#define FAULT_ENCODE \
	for (uint64_t i = 0; i < work->bucket->numel; i++) \
	work->x[0][i] *= 0.5f
#include "tests/plugins/faulty_compressor.h"
