/* steady: waits a moment for the others. */
#define FAULT_NAME "sleeps"
#include <unistd.h>
#define FAULT_ENCODE usleep(1)
#include "tests/plugins/faulty_compressor.h"
