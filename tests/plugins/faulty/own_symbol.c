/* process: exports a function of the library. */
#define FAULT_NAME "own_symbol"
#include "tests/plugins/faulty_compressor.h"

GRADCOMP_EXPORT int gradcomp_job_rank(const void *job);
GRADCOMP_EXPORT int gradcomp_job_rank(const void *job)
{
	return job != NULL;
}
