/* steady process: has a setting for its library. */
#define FAULT_NAME "changes_environment"
#include <stdlib.h>
#define FAULT_CREATE setenv("OMP_NUM_THREADS", "61", 1)
#include "tests/plugins/faulty_compressor.h"
