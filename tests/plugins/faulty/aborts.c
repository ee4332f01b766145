/* bounds: an assertion does not hold. */
#define FAULT_NAME "aborts"
#include <stdlib.h>
#define FAULT_DECODE \
	if (n == 3) \
	abort()
#include "tests/plugins/faulty_compressor.h"
