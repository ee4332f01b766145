/* Says nothing about its payloads. */
#define FIXTURE_NAME "no_patterns"
#define FIXTURE_PATTERNS 0
#include "plugins/fixture_compressor.h"
