/* memory: destroy() does not expect NULL. */
#define FAULT_NAME "destroys_null"
#define FAULT_DESTROY_NULL
#include "tests/plugins/faulty_compressor.h"
