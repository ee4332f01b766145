/* In order: cannot gather. */
#define FIXTURE_NAME "sumonly"
#define FIXTURE_SERVES GRADCOMP_CAN_ALLREDUCE
#define FIXTURE_ALLREDUCE fixture_allreduce
#include "tests/plugins/fixture_collective.h"
