/* In order: gathers, or else gives codes. */
#define FIXTURE_NAME "either"
#define FIXTURE_PATTERNS GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED)
#define FIXTURE_INSTEAD GRADCOMP_PATTERN_BIT(GRADCOMP_CODED)
#define FIXTURE_CODES
#include "tests/plugins/fixture_compressor.h"
