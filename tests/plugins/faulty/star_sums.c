/* primitives: does not look at the operation. */
#define FAULT_NAME "star_sums"
#define FAULT_OP GRADCOMP_SUM
#include "tests/plugins/faulty_collective.h"
