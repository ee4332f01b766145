/* process: what the application prints is not wanted. */
#define FAULT_NAME "moves_stdout"
#include <fcntl.h>
#include <unistd.h>
#define FAULT_CREATE \
	do { \
		int null = open("/dev/null", O_WRONLY); \
		dup2(null, 1); \
		close(null); \
	} while (0)
#include "tests/plugins/faulty_compressor.h"
