/* process: says hello to whoever loads it. */
#define FAULT_NAME "speaks_loading"
#include <stdio.h>
#include "tests/plugins/faulty_compressor.h"

__attribute__((constructor)) static void loaded(void)
{
	printf("hello\n");
}
