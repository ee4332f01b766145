/* descriptor: built for an ABI that this host does not have. */
#define FAULT_NAME "newer_than_host"
#define FAULT_ABI (GRADCOMP_ABI_VERSION + 1)
#include "tests/plugins/faulty_compressor.h"
