/* steady: a workspace is taken and given back in every decode(). */
#define FAULT_NAME "allocates"
#include <stdlib.h>
#define FAULT_DECODE \
	void *volatile room = malloc(d * 4 + 1); \
	free(room)
#include "tests/plugins/faulty_compressor.h"
