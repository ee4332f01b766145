/* process: a division by zero interrupts the process from now on. */
#define FAULT_NAME "traps_floats"
#include <fenv.h>
#define FAULT_CREATE feenableexcept(FE_DIVBYZERO)
#include "tests/plugins/faulty_compressor.h"
