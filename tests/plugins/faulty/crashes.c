/* bounds: writes where there is nothing. */
#define FAULT_NAME "crashes"
#define FAULT_ENCODE *nowhere = 1
static volatile int *volatile nowhere;
#include "tests/plugins/faulty_compressor.h"
