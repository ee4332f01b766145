/* Says that it is longer than what it exports. */
#define FIXTURE_NAME "long_struct"
#define FIXTURE_SIZE (sizeof(struct gradcomp_compressor_v1) + 8)
#include "tests/plugins/fixture_compressor.h"
