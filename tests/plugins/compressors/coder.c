/* Its sums travel under a code of any length; see unruly.h. */
#define UNRULY_NAME "coder"
#define UNRULY_PATTERN GRADCOMP_CODED
#include "tests/plugins/unruly.h"
