/* time: a counter of 16 bits never gets there. */
#define FAULT_NAME "loops_in_16_bits"
#define FAULT_DECODE for (volatile uint16_t j = 0; j < k; j++)
#include "tests/plugins/faulty_compressor.h"
