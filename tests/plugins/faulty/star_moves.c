/* links: waits for a copy of its request. */
#define FAULT_NAME "star_moves"
#define FAULT_MOVES
#include "tests/plugins/faulty_collective.h"
