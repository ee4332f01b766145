/* threads: more on the stack than a worker may have. */
#define FAULT_NAME "deep_stack"
#include <string.h>

static void deep(void)
{
	char room[1 << 20];
	memset(room, 0, sizeof room);
	__asm__ volatile("" : : "r"(room) : "memory");
}

#define FAULT_DECODE deep()
#include "tests/plugins/faulty_compressor.h"
