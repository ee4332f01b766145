#include "gradcomp/sdk/passthrough.h"

#include "gradcomp/sdk/residual.h"

gradcomp_round sdk_passthrough_round(uint64_t count)
{
	return (gradcomp_round){
		.pattern = GRADCOMP_SUMMED, .dtype = GRADCOMP_F32, .flags = GRADCOMP_ROUND_MEAN, .count = count};
}

void sdk_passthrough_plan(const gradcomp_bucket *bucket, gradcomp_plan *plan)
{
	plan->nrounds = 1;
	plan->rounds[0] = sdk_passthrough_round(bucket->numel);
	plan->rounds[0].flags |= GRADCOMP_ROUND_IN_PLACE;
}

void sdk_passthrough_decode(const gradcomp_work *work)
{
	sdk_residual_none(work);
}
