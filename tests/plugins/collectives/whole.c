/* In order: brings a coded sum of its own. */
#define FIXTURE_NAME "whole"
#define FIXTURE_SERVES (GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER | GRADCOMP_CAN_EXCHANGE)
#define FIXTURE_ALLREDUCE fixture_allreduce
#define FIXTURE_ALLGATHER fixture_allgather
#define FIXTURE_EXCHANGE fixture_exchange
#include "tests/plugins/fixture_collective.h"
