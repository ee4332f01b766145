/* conservation: error memory keeps that an average has overflowed, for ever. */
#define FAULT_NAME "keeps_inf"
#define FAULT_AFTER \
	for (uint64_t i = 0; i < d; i++) \
		if (work->flat[i] > 2e38f || work->flat[i] < -2e38f) \
	work->error_flat[i] = 2 * work->flat[i]
#include "tests/plugins/faulty_compressor.h"
