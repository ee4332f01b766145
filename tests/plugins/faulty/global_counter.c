/* globals: instances share a counter. */
#define FAULT_NAME "global_counter"
#define FAULT_AFTER total++, r->shift[work->bucket->first % (r->ntensors ? r->ntensors : 1)] += total
static unsigned total;
#include "tests/plugins/faulty_compressor.h"
