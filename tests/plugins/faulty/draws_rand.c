/* steady: uses the C library's random numbers, which are the application's. */
#define FAULT_NAME "draws_rand"
#include <stdlib.h>
#define FAULT_ENCODE (void)rand()
#include "tests/plugins/faulty_compressor.h"
