/* process: ends the process, with status 0. */
#define FAULT_NAME "star_exits"
#define FAULT_CALL \
	if (l->nranks == 3) \
	exit(0)
#include "tests/plugins/faulty_collective.h"
