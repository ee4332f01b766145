/* bytes: gives a payload of its own in place of the host's. */
#define FAULT_NAME "replaces_payload"
#define FAULT_PLAN plan->scratch_bytes = FAULT_BOUND(bucket->numel)
#define FAULT_ENCODE out->data = work->scratch
#include "tests/plugins/faulty_compressor.h"
