/* bytes: twice what the method sends, and what cost() says, lies in the payload. */
#define FAULT_NAME "says_less"
#define FAULT_BOUND(d) (8 + 8 * run_length(d) + 64)
#include "tests/plugins/faulty_compressor.h"
