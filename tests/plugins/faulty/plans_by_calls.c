/* agreement: every other call of plan() has another bound. */
#define FAULT_NAME "plans_by_calls"
#define FAULT_MEMBERS unsigned planned;
#define FAULT_PLAN ((runs *)instance)->planned++, plan->scratch_bytes = ((runs *)instance)->planned % 2
#include "tests/plugins/faulty_compressor.h"
