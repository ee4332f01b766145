/* process: has enough with 200 descriptors. */
#define FAULT_NAME "sets_limit"
#include <sys/resource.h>
#define FAULT_CREATE setrlimit(RLIMIT_NOFILE, &(struct rlimit){200, 200})
#include "tests/plugins/faulty_compressor.h"
