/* threads: what encode() leaves for decode() waits in memory of the thread. */
#define FAULT_NAME "thread_local"
#define FAULT_ENCODE kept = run_begins(r, work) + 1
#define FAULT_DECODE \
	if (!kept) \
	return r->host->fail(err, GRADCOMP_ERR_STATE, "nothing was encoded")
static _Thread_local unsigned long kept;
#include "tests/plugins/faulty_compressor.h"
