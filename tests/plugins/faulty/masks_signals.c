/* process: is not to be interrupted. */
#define FAULT_NAME "masks_signals"
#include <signal.h>

static void mask(void)
{
	sigset_t set;
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
}

#define FAULT_DECODE mask()
#include "tests/plugins/faulty_compressor.h"
