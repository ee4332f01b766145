/* In order: its payloads are gathered. */
#define FIXTURE_NAME "gatherer"
#define FIXTURE_PATTERNS GRADCOMP_PATTERN_BIT(GRADCOMP_GATHERED)
#include "tests/plugins/fixture_compressor.h"
