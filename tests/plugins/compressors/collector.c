/* Its payloads are gathered; see unruly.h. */
#define UNRULY_NAME "collector"
#define UNRULY_PATTERN GRADCOMP_GATHERED
#include "tests/plugins/unruly.h"
