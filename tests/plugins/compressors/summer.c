/* Its payloads are summed; see unruly.h. */
#define UNRULY_NAME "summer"
#define UNRULY_PATTERN GRADCOMP_SUMMED
#include "tests/plugins/unruly.h"
