/* process: ends the process that loads it. */
#define FAULT_NAME "exits_loading"
#include <stdlib.h>
#include "tests/plugins/faulty_compressor.h"

__attribute__((constructor)) static void loaded(void)
{
	exit(0);
}
