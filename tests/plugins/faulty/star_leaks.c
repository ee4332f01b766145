/* memory: destroy() does nothing. */
#define FAULT_NAME "star_leaks"
#define FAULT_LEAK
#include "tests/plugins/faulty_collective.h"
