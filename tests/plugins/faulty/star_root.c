/* primitives: rank 0 is the root of every broadcast. */
#define FAULT_NAME "star_root"
#define FAULT_ROOT 0
#include "tests/plugins/faulty_collective.h"
