/* Built for an ABI that is yet to come. */
#define FIXTURE_NAME "newer_abi"
#define FIXTURE_ABI (GRADCOMP_ABI_VERSION + 1)
#include "tests/plugins/fixture_compressor.h"
