/* steady: tells stdout what it does. */
#define FAULT_NAME "prints"
#include <stdio.h>
#define FAULT_DECODE printf("decoding %u payloads\n", n)
#include "tests/plugins/faulty_compressor.h"
