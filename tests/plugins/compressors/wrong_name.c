/* Called something else inside. */
#define FIXTURE_NAME "right_name"
#include "tests/plugins/fixture_compressor.h"
