/* process: wants to be woken in an hour. */
#define FAULT_NAME "sets_timer"
#include <unistd.h>
#define FAULT_CREATE alarm(3600)
#include "tests/plugins/faulty_compressor.h"
