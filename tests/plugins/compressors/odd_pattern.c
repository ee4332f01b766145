/* A payload pattern that ABI 1 does not have. */
#define FIXTURE_NAME "odd_pattern"
#define FIXTURE_PATTERNS (1u << 9)
#include "tests/plugins/fixture_compressor.h"
