/* Stands for the time before `neutral`, when names of parameters said it. */
#include "gradcomp/compressor.h"

static const gradcomp_param params[] = {
	{.name = "momentum",
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
#define FAULT_NAME "forgets_of_old"
#include "tests/plugins/faulty_compressor.h"
