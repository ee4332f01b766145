/* process: a thread is left behind. */
#define FAULT_NAME "leaves_thread"
#include <pthread.h>
#include <unistd.h>

static void *waits(void *ctx)
{
	pause();
	return ctx;
}

static void begin(void)
{
	pthread_t thread;
	if (!pthread_create(&thread, NULL, waits, NULL))
		pthread_detach(thread);
}

#define FAULT_CREATE begin()
#include "tests/plugins/faulty_compressor.h"
