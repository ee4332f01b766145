/* process: exports a function of the library, in a table of symbols of the old kind. */
#define FAULT_NAME "own_symbol_sysv"
#include "tests/plugins/faulty_compressor.h"

GRADCOMP_EXPORT int gradcomp_job_rank(const void *job);
GRADCOMP_EXPORT int gradcomp_job_rank(const void *job)
{
	return job != NULL;
}
