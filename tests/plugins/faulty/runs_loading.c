/* process: asks a shell as it is loaded. */
#define FAULT_NAME "runs_loading"
#include <stdlib.h>
#include "tests/plugins/faulty_compressor.h"

__attribute__((constructor)) static void loaded(void)
{
	(void)!system("true");
}
