/* process: ends the process as it is made. */
#define FAULT_NAME "exits_creating"
#include <unistd.h>
#define FAULT_CREATE _exit(0)
#include "tests/plugins/faulty_compressor.h"
