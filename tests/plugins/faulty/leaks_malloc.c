/* memory: create() takes memory that is nobody's. */
#define FAULT_NAME "leaks_malloc"
#include <stdlib.h>
#define FAULT_CREATE \
	void *volatile lost = malloc(100); \
	(void)lost
#include "tests/plugins/faulty_compressor.h"
