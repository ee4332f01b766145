/* links: drops what wait() says. */
#define FAULT_NAME "star_deaf"
#define FAULT_DEAF
#include "tests/plugins/faulty_collective.h"
