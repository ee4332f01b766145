/* bounds: clears a byte too many. */
#define FAULT_NAME "star_overruns"
#define FAULT_CALL *((volatile char *)buf + bytes) = 0
#include "tests/plugins/faulty_collective.h"
