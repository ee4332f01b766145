/* agreement: every rank adds its own payload first, and floats do not add up the same
 * in every order. */
#define FAULT_NAME "ranks_differ"
#define FAULT_FIRST r->rank
#include "tests/plugins/faulty_compressor.h"
