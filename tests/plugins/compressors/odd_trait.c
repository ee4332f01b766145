/* A trait that ABI 1 does not have. */
#define FIXTURE_NAME "odd_trait"
#define FIXTURE_TRAITS (1u << 20)
#include "tests/plugins/fixture_compressor.h"
