/* predict: long calls are told to send less than shorter ones. */
#include "gradcomp/collective.h"

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	(void)values, (void)nranks, (void)nnodes, (void)err;
	if (primitive != GRADCOMP_CAN_ALLREDUCE)
		return GRADCOMP_ERR_UNSUPPORTED;
	*out = (gradcomp_call_load){.struct_size = out->struct_size, .sent = bytes < 100000000 ? (double)bytes : 1};
	return GRADCOMP_OK;
}

#define FIXTURE_NAME "shrinks"
#define FIXTURE_SERVES GRADCOMP_CAN_ALLREDUCE
#define FIXTURE_ALLREDUCE fixture_allreduce
#define FIXTURE_PREDICT predict
#include "tests/plugins/fixture_collective.h"
