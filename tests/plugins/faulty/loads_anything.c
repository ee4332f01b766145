/* saved-state: a state that is cut short is taken. */
#define FAULT_NAME "loads_anything"
#define FAULT_LOADS_ALL
#include "tests/plugins/faulty_compressor.h"
