/* steady process: asks a shell. */
#define FAULT_NAME "runs_command"
#include <stdlib.h>
#define FAULT_CREATE (void)!system("true")
#include "tests/plugins/faulty_compressor.h"
