/* descriptor: a flag that there is not. */
#define FAULT_NAME "odd_flags"
#define FAULT_PLAN plan->rounds[0].flags |= 1u << 9
#include "tests/plugins/faulty_compressor.h"
