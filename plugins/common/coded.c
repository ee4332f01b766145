#include "plugins/common/coded.h"

#include "plugins/common/passthrough.h"

gradcomp_status coded_plan(void *instance, const gradcomp_bucket *bucket, uint64_t step, gradcomp_plan *plan,
                           gradcomp_error *err)
{
	const coded *c = instance;
	(void)err;
	if (step < c->start_step) {
		passthrough_plan(bucket, plan);
		return GRADCOMP_OK;
	}
	coded_round(bucket, plan);
	return GRADCOMP_OK;
}

gradcomp_status coded_encode(void *instance, const gradcomp_work *work, uint32_t round, gradcomp_payload *out,
                             gradcomp_error *err)
{
	const coded *c = instance;
	(void)work, (void)out;
	return c->host->fail(err, GRADCOMP_ERR_INTERNAL,
	                     "%s: encode of round %u was called, but the payload is coded in place", c->name, round);
}

gradcomp_status coded_decode(void *instance, const gradcomp_work *work, uint32_t round,
                             const gradcomp_payload *in, uint32_t n, gradcomp_error *err)
{
	const coded *c = instance;
	(void)round, (void)in, (void)n, (void)err;
	if (work->step < c->start_step)
		passthrough_decode(work);
	return GRADCOMP_OK;
}

gradcomp_status coded_length(const coded *c, uint64_t bytes, uint64_t want, uint64_t n, gradcomp_error *err)
{
	if (bytes == want)
		return GRADCOMP_OK;
	return c->host->fail(err, GRADCOMP_ERR_MISMATCH, "%s: a run of %llu numbers came in %llu bytes, %llu are right",
	                     c->name, (unsigned long long)n, (unsigned long long)bytes, (unsigned long long)want);
}
