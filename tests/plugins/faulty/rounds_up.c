/* process: rounds up from now on. */
#define FAULT_NAME "rounds_up"
#include <fenv.h>
#define FAULT_ENCODE fesetround(FE_UPWARD)
#include "tests/plugins/faulty_compressor.h"
