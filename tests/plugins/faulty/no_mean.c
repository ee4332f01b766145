/* Counts more than once what several ranks give, which it says. */
#define FAULT_NO_MEAN
#define FAULT_NAME "no_mean"
#define FAULT_AFTER \
	for (uint64_t i = 0; i < d; i++) \
	work->flat[i] *= (float)n
#include "tests/plugins/faulty_compressor.h"
