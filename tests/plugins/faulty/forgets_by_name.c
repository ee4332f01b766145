/* A parameter makes it forget on purpose, and the plugin says with what value it does not. */
#include "gradcomp/compressor.h"

static const gradcomp_param params[] = {
	{.name = "beta",
         .type = GRADCOMP_PARAM_FLOAT,
         .def = "0.1",
         .max = 1,
         .help = "what is forgotten of error memory in a step"},
};
#define FAULT_PARAMS params
#define FAULT_MEMBERS float share;
#define FAULT_KEEP(r, values) (r)->share = (float)(values)[0].f
#define FAULT_AFTER \
	for (uint64_t i = 0; work->error_flat && i < work->bucket->numel; i++) \
	work->error_flat[i] *= 1 - r->share
#define FAULT_NEUTRAL "beta=0"
#define FAULT_NAME "forgets_by_name"
#include "tests/plugins/faulty_compressor.h"
