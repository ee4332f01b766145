/* steady: seeds the random numbers of the application. */
#define FAULT_NAME "sows_random"
#include <stdlib.h>
#define FAULT_CREATE srand(1)
#include "tests/plugins/faulty_compressor.h"
