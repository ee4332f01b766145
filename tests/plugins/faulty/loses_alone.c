/* conservation: its average is said to be no mean over all ranks, and on one rank half is lost. */
#define FAULT_NO_MEAN
#define FAULT_NAME "loses_alone"
#define FAULT_AFTER \
	for (uint64_t i = 0; i < d; i++) \
	work->error_flat[i] *= 0.5f
#include "tests/plugins/faulty_compressor.h"
