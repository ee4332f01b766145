/* bounds: one float too many goes into the payload. */
#define FAULT_NAME "writes_behind"
#define FAULT_ENCODE ((float *)out->data)[2 + n] = 0
#include "tests/plugins/faulty_compressor.h"
