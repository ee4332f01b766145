/* Its payloads meet and merge; see unruly.h. */
#define UNRULY_NAME "meeter"
#define UNRULY_PATTERN GRADCOMP_MERGED
#include "tests/plugins/unruly.h"
