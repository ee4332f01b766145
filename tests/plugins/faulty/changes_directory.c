/* steady process: is at home in another folder. */
#define FAULT_NAME "changes_directory"
#include <unistd.h>
#define FAULT_CREATE (void)!chdir("/")
#include "tests/plugins/faulty_compressor.h"
