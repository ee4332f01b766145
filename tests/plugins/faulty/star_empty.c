/* primitives: does not expect no numbers. */
#define FAULT_NAME "star_empty"
#define FAULT_CALL \
	if (!count) \
	abort()
#include "tests/plugins/faulty_collective.h"
