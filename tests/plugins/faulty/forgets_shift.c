/* resume: save() leaves out how far the next run is shifted. */
#define FAULT_NAME "forgets_shift"
#define FAULT_SAVED(r) 1
#include "tests/plugins/faulty_compressor.h"
