/* A reserved word is in use. */
#define FIXTURE_NAME "reserved"
#define FIXTURE_RESERVED 7
#include "tests/plugins/fixture_compressor.h"
