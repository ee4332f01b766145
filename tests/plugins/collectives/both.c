/* In order: sums and gathers. */
#define FIXTURE_NAME "both"
#define FIXTURE_SERVES (GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER)
#define FIXTURE_ALLREDUCE fixture_allreduce
#define FIXTURE_ALLGATHER fixture_allgather
#include "tests/plugins/fixture_collective.h"
