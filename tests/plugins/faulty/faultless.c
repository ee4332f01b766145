/* No fault: what the others are measured against. */
#define FAULT_NAME "faultless"
#include "plugins/faulty_compressor.h"
