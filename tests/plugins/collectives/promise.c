/* Serves what it has no function for. */
#define FIXTURE_NAME "promise"
#define FIXTURE_SERVES (GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER)
#define FIXTURE_ALLREDUCE fixture_allreduce
#include "tests/plugins/fixture_collective.h"
