/* time: waits for ever when there are five ranks. */
#define FAULT_NAME "hangs"
#define FAULT_DECODE \
	if (n == 5) \
		for (;;) \
	__asm__ volatile("")
#include "tests/plugins/faulty_compressor.h"
