/* conservation: what is behind the first 65,536 numbers is forgotten. */
#define FAULT_NAME "forgets_behind"
#define FAULT_AFTER \
	if (d > 65536) \
	memset(work->error_flat + 65536, 0, 4)
#include "tests/plugins/faulty_compressor.h"
