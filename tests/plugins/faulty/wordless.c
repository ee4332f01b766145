/* parameters: create() refuses a value of the table and does not say why. */
#define FAULT_NAME "wordless"
#define FAULT_PARAMS wordless_params
#define FAULT_CREATE \
	if (values[0].i == 64) \
	return GRADCOMP_ERR_INVALID
#include "gradcomp/compressor.h"
static const gradcomp_param wordless_params[] = {
	{.name = "level", .type = GRADCOMP_PARAM_INT, .def = "1", .min = 1, .max = 64, .help = "a level"},
};
#include "tests/plugins/faulty_compressor.h"
