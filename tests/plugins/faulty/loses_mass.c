/* conservation: the last number that is not sent is forgotten. */
#define FAULT_NAME "loses_mass"
#define FAULT_AFTER \
	if (d) \
	work->error_flat[d - 1] = 0
#include "tests/plugins/faulty_compressor.h"
