/* In order: brings an exchange of its own. */
#define FIXTURE_NAME "whole"
#define FIXTURE_SERVES GRADCOMP_CAN_EXCHANGE
#define FIXTURE_EXCHANGE fixture_exchange
#include "plugins/fixture_collective.h"
