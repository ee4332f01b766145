/* primitives: multiplies twice. */
#define FAULT_NAME "star_scales_twice"
#define FAULT_SCALE scale *scale
#include "tests/plugins/faulty_collective.h"
