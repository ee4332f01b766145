/* A range that is upside down. */
#define FIXTURE_NAME "bad_range"
#define FIXTURE_PARAMS bad_range_params
#include "gradcomp/compressor.h"

static const gradcomp_param bad_range_params[] = {
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .min = 64, .max = 1, .help = "h"},
};
#include "tests/plugins/fixture_compressor.h"
