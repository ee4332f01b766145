/* memory: destroy() forgets an array. */
#define FAULT_NAME "leaks"
#define FAULT_LEAK
#include "plugins/faulty_compressor.h"
