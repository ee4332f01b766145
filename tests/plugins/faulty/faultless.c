/* No fault: what the others are measured against. */
#define FAULT_NAME "faultless"
#include "tests/plugins/faulty_compressor.h"
