/* process: opens a file and forgets it. */
#define FAULT_NAME "leaves_descriptor"
#include <fcntl.h>
#define FAULT_CREATE (void)!open("/dev/null", O_RDONLY | O_CLOEXEC)
#include "tests/plugins/faulty_compressor.h"
