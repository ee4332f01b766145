/* process: ends the process, with status 0. */
#define FAULT_NAME "exits"
#include <stdlib.h>
#define FAULT_DECODE \
	if (n == 2) \
	exit(0)
#include "tests/plugins/faulty_compressor.h"
