/* predict: calls of several ranks take no message. */
#include "gradcomp/collective.h"

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	(void)values, (void)nranks, (void)nnodes, (void)err;
	out->bytes[1] = out->sent = (double)bytes;
	return primitive == GRADCOMP_CAN_ALLREDUCE ? GRADCOMP_OK : GRADCOMP_ERR_UNSUPPORTED;
}

#define FIXTURE_NAME "silent"
#define FIXTURE_SERVES GRADCOMP_CAN_ALLREDUCE
#define FIXTURE_ALLREDUCE fixture_allreduce
#define FIXTURE_PREDICT predict
#include "tests/plugins/fixture_collective.h"
