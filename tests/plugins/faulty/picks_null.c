/* descriptor: choice() has no word for a tensor. */
#define FAULT_NAME "picks_null"
#define FAULT_CHOICE
#include "tests/plugins/faulty_compressor.h"
