/* conservation: adds up in scratch, which nobody has cleared. */
#define FAULT_NAME "adds_scratch"
#define FAULT_PLAN plan->scratch_bytes = bucket->numel * sizeof(float)
#define FAULT_AFTER \
	for (uint64_t i = 0; i < d; i++) { \
		((float *)work->scratch)[i] += work->flat[i]; \
		work->flat[i] = ((float *)work->scratch)[i]; \
	}
#include "tests/plugins/faulty_compressor.h"
