/* process: makes a success of every exit status. */
#define FAULT_NAME "exits_leaving"
#include <unistd.h>
#include "tests/plugins/faulty_compressor.h"

__attribute__((destructor)) static void leaving(void)
{
	_exit(0);
}
