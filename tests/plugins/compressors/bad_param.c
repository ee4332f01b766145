/* A parameter that cannot be typed. */
#define FIXTURE_NAME "bad_param"
#define FIXTURE_PARAMS bad_param_params
#include "gradcomp/compressor.h"

static const gradcomp_param bad_param_params[] = {
	{.name = "Rank=", .type = GRADCOMP_PARAM_INT, .def = "4", .help = "h"},
};
#include "tests/plugins/fixture_compressor.h"
