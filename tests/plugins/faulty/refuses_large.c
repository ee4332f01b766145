/* conservation: fails where averages are near the largest float. */
#define FAULT_NAME "refuses_large"
#define FAULT_AFTER \
	for (uint64_t i = 0; i < d; i++) \
		if (work->flat[i] > 2e38f) \
	return r->host->fail(err, GRADCOMP_ERR_RANGE, "runs: %g is too large", (double)work->flat[i])
#include "tests/plugins/faulty_compressor.h"
