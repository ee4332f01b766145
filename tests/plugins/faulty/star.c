/* :  */
#define FAULT_NAME "star"
#include "tests/plugins/faulty_collective.h"
