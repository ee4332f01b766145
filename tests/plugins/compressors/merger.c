/* Its payloads are merged; see unruly.h. */
#define UNRULY_NAME "merger"
#define UNRULY_PATTERN GRADCOMP_MERGED
#include "tests/plugins/unruly.h"
