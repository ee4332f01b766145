/* A function that every compressor needs is missing. */
#define FIXTURE_NAME "no_encode"
#define FIXTURE_ENCODE NULL
#include "plugins/fixture_compressor.h"
