/* steady process: starts a process. */
#define FAULT_NAME "forks"
#include <sys/wait.h>
#include <unistd.h>

static void begin(void)
{
	pid_t child = fork();
	if (!child)
		_exit(0);
	waitpid(child, NULL, 0);
}

#define FAULT_CREATE begin()
#include "tests/plugins/faulty_compressor.h"
