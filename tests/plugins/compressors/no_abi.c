/* Its ABI number was never set. */
#define FIXTURE_NAME "no_abi"
#define FIXTURE_ABI 0
#include "tests/plugins/fixture_compressor.h"
