/* conservation: counts what it has sent in 16 bits. */
#define FAULT_NAME "counts_in_16_bits"
#define FAULT_AFTER \
	if (k > 65535) \
	memset(work->error_flat + begins, 0, 4 * (d - begins))
#include "tests/plugins/faulty_compressor.h"
