/* memory: destroy() forgets an array. */
#define FAULT_NAME "leaks"
#define FAULT_LEAK
#include "tests/plugins/faulty_compressor.h"
