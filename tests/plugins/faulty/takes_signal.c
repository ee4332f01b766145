/* steady process: wants to hear of SIGUSR1. */
#define FAULT_NAME "takes_signal"
#include <signal.h>
#define FAULT_CREATE signal(SIGUSR1, SIG_IGN)
#include "tests/plugins/faulty_compressor.h"
