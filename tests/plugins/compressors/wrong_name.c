/* Called something else inside. */
#define FIXTURE_NAME "right_name"
#include "plugins/fixture_compressor.h"
