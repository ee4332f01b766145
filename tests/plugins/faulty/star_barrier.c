/* primitives: nobody waits at its barrier. */
#define FAULT_NAME "star_barrier"
#define FAULT_BARRIER
#include "tests/plugins/faulty_collective.h"
