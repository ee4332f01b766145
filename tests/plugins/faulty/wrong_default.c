/* descriptor: the default is out of its own range. */
#define FAULT_NAME "wrong_default"
#define FAULT_PARAMS wrong_params
#include "gradcomp/compressor.h"
static const gradcomp_param wrong_params[] = {
	{.name = "level", .type = GRADCOMP_PARAM_INT, .def = "65", .min = 1, .max = 64, .help = "a level"},
};
#include "tests/plugins/faulty_compressor.h"
