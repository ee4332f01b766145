#include "gradcomp/sdk/coded.h"

#include "gradcomp/sdk/passthrough.h"

void sdk_coded_round(const gradcomp_bucket *bucket, gradcomp_plan *plan)
{
	plan->nrounds = 1;
	plan->rounds[0] = (gradcomp_round){.pattern = GRADCOMP_CODED, .dtype = GRADCOMP_F32, .count = bucket->numel};
}

gradcomp_status sdk_coded_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                               gradcomp_error *err)
{
	const sdk_coded *c = instance;
	(void)err;
	if (step < c->start_step) {
		sdk_passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	sdk_coded_round(bucket, plan);
	return GRADCOMP_OK;
}

gradcomp_status sdk_coded_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                                 gradcomp_error *err)
{
	const sdk_coded *c = instance;
	(void)work, (void)out;
	return c->host->fail(err, GRADCOMP_ERR_INTERNAL,
	                     "%s: encode of round %u was called, but the payload is coded in place", c->name, round);
}

gradcomp_status sdk_coded_decode(void *instance, const gradcomp_work *work, uint32_t round, const gradcomp_payload *in,
                                 uint32_t n, gradcomp_error *err)
{
	const sdk_coded *c = instance;
	(void)round, (void)in, (void)n, (void)err;
	if (work->step < c->start_step)
		sdk_passthrough_decode(work);
	return GRADCOMP_OK;
}

gradcomp_status sdk_coded_length(const sdk_coded *c, uint64_t bytes, uint64_t want, uint64_t n, gradcomp_error *err)
{
	if (bytes == want)
		return GRADCOMP_OK;
	return c->host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: a run of %llu numbers came in %llu bytes, %llu are right",
	                     c->name, (unsigned long long)n, (unsigned long long)bytes, (unsigned long long)want);
}
