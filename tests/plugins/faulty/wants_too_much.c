/* descriptor: a length that went below zero. */
#define FAULT_NAME "wants_too_much"
#define FAULT_PLAN plan->scratch_bytes = (uint64_t)0 - 64
#include "tests/plugins/faulty_compressor.h"
