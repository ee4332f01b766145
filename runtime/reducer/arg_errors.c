#include "reducer/arg_errors.h"

#include "base/error.h"
#include "job/job.h"

gradcomp_status arg_error_index(uint32_t index, uint32_t n, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_INVALID, "tensor %u: the reducer has tensors 0..%u", index, n - 1);
}

gradcomp_status arg_error_null(uint32_t index, const char *name, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_INVALID, "tensor %u '%s': gradient is NULL", index, name);
}

void arg_fail_twice(gradcomp_job *job, uint32_t index, const char *name, uint64_t step)
{
	gradcomp_error why;
	error_set(
		&why, GRADCOMP_ERR_STATE,
		"tensor %u '%s' was given again in step %llu, which has not ended: gradients of two iterations cannot "
		"be averaged together (was a backward pass given up half-way? else wait for the step to end)",
		index, name, (unsigned long long)step);
	job_fail(job, GRADCOMP_ERR_STATE, why.text);
}

gradcomp_status arg_error_missing(uint32_t given, uint32_t n, uint64_t step, uint32_t index, const char *name,
                                  gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_STATE,
	                 "wait: only %u of %u tensors were given in step %llu; tensor %u '%s' is missing", given, n,
	                 (unsigned long long)step, index, name);
}

gradcomp_status arg_error_not_given(uint32_t index, const char *name, uint64_t step, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_STATE, "wait: tensor %u '%s' was not given in step %llu", index, name,
	                 (unsigned long long)step);
}
