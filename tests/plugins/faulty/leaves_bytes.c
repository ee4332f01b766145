/* bytes: the payload has a header, of which one word is not written. */
#define FAULT_NAME "leaves_bytes"
#define FAULT_BOUND(d) (16 + 4 * run_length(d))
#include "tests/plugins/faulty_compressor.h"
