/* Promises to merge, without a function for it. */
#define FIXTURE_NAME "no_merge"
#define FIXTURE_PATTERNS GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED)
#include "tests/plugins/fixture_compressor.h"
