/* descriptor: takes a status for an answer: 1 when all is well. */
#define FAULT_NAME "returns_true"
#define FAULT_AFTER return (gradcomp_status)1
#include "tests/plugins/faulty_compressor.h"
