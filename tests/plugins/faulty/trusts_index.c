/* peers: where a run begins is believed. */
#define FAULT_NAME "trusts_index"
#define FAULT_TRUSTING
#include "tests/plugins/faulty_compressor.h"
