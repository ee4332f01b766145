/* One parameter twice. */
#define FIXTURE_NAME "twin"
#define FIXTURE_PARAMS twin_params
#include "gradcomp/compressor.h"

static const gradcomp_param twin_params[] = {
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "4", .help = "h"},
	{.name = "rank", .type = GRADCOMP_PARAM_INT, .def = "5", .help = "h"},
};
#include "tests/plugins/fixture_compressor.h"
