/* decode-only: encode() counts the turns, so a step that is given up counts too. */
#define FAULT_NAME "counts_early"
#define FAULT_ENCODE r->turn[work->bucket->first]++
#include "tests/plugins/faulty_compressor.h"
