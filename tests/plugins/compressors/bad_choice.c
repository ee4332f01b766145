/* A choice without choices. */
#define FIXTURE_NAME "bad_choice"
#define FIXTURE_PARAMS bad_choice_params
#include "gradcomp/compressor.h"

static const gradcomp_param bad_choice_params[] = {
	{.name = "type", .type = GRADCOMP_PARAM_CHOICE, .def = "a", .help = "h"},
};
#include "tests/plugins/fixture_compressor.h"
