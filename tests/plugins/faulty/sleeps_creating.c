/* steady: waits for something as it is made. */
#define FAULT_NAME "sleeps_creating"
#include <unistd.h>
#define FAULT_CREATE usleep(1)
#include "tests/plugins/faulty_compressor.h"
