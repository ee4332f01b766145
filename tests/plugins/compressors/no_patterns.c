/* Says nothing about its payloads. */
#define FIXTURE_NAME "no_patterns"
#define FIXTURE_PATTERNS 0
#include "tests/plugins/fixture_compressor.h"
