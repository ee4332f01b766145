/* bounds: looks into the values of its parameters after create(). */
#define FAULT_NAME "keeps_values"
#include "gradcomp/compressor.h"

static const gradcomp_param params[] = {
	{.name = "shift", .type = GRADCOMP_PARAM_INT, .def = "0", .min = 0, .max = 8, .help = "where runs begin"},
};
#define FAULT_PARAMS params
#define FAULT_MEMBERS const gradcomp_value *values;
#define FAULT_PLAN \
	if (!((runs *)instance)->values[0].s) \
	plan->scratch_bytes = (uint64_t)((runs *)instance)->values[0].i
#define FAULT_KEEP(r, v) (r)->values = (v)
#include "tests/plugins/faulty_compressor.h"
