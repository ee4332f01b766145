/* Shorter than ABI 1. */
#define FIXTURE_NAME "short_struct"
#define FIXTURE_SIZE (sizeof(struct gradcomp_compressor_v1) - 8)
#include "tests/plugins/fixture_compressor.h"
