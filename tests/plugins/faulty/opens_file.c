/* steady: looks into a file in every step. */
#define FAULT_NAME "opens_file"
#include <stdio.h>

static void look(void)
{
	FILE *f = fopen("/dev/null", "re");
	if (f)
		fclose(f);
}

#define FAULT_ENCODE look()
#include "tests/plugins/faulty_compressor.h"
