/* process: computes on one CPU, and so does the application. */
#define FAULT_NAME "pins_threads"
#include <sched.h>
#define FAULT_CREATE \
	do { \
		cpu_set_t allowed, one; \
		int cpu = 0; \
		sched_getaffinity(0, sizeof allowed, &allowed); \
		while (!CPU_ISSET(cpu, &allowed)) \
			cpu++; \
		CPU_ZERO(&one); \
		CPU_SET(cpu, &one); \
		sched_setaffinity(0, sizeof one, &one); \
	} while (0)
#include "tests/plugins/faulty_compressor.h"
