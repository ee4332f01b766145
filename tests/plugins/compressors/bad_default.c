/* A default outside of its own range. */
#define FIXTURE_NAME "bad_default"
#define FIXTURE_PARAMS bad_default_params
#include "gradcomp/compressor.h"

static const gradcomp_param bad_default_params[] = {
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "99", .min = 1, .max = 64, .help = "h"},
};
#include "tests/plugins/fixture_compressor.h"
