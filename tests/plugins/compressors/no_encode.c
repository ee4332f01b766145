/* A function that every compressor needs is missing. */
#define FIXTURE_NAME "no_encode"
#define FIXTURE_ENCODE NULL
#include "tests/plugins/fixture_compressor.h"
