/* links: returns while what it sends is on its way. */
#define FAULT_NAME "star_unwaited"
#define FAULT_UNWAITED
#include "tests/plugins/faulty_collective.h"
