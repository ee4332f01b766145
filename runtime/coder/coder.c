/* Coded reduce-scatter and all-gather for programs (gradcomp/coder.h). */
#include "gradcomp/coder.h"

#include "base/error.h"

static gradcomp_status not_yet(gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "coders are not served by this build");
}

gradcomp_status gradcomp_coder_create(gradcomp_group *group, const char *spec, const gradcomp_coder_options *options,
                                      gradcomp_coder **out, gradcomp_error *err)
{
	(void)group, (void)spec, (void)options;
	*out = NULL;
	return not_yet(err);
}

void gradcomp_coder_free(gradcomp_coder *coder)
{
	(void)coder;
}

gradcomp_status gradcomp_coder_check(const char *spec, const char *collective, gradcomp_error *err)
{
	(void)spec, (void)collective;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_reduce_scatter(gradcomp_coder *coder, void *in, void *out, const uint64_t *counts,
                                              gradcomp_dtype dtype, double scale, uint32_t slot, gradcomp_error *err)
{
	(void)coder, (void)in, (void)out, (void)counts, (void)dtype, (void)scale, (void)slot;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_all_gather(gradcomp_coder *coder, const void *in, void *out, const uint64_t *counts,
                                          gradcomp_dtype dtype, gradcomp_error *err)
{
	(void)coder, (void)in, (void)out, (void)counts, (void)dtype;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_reduce_scatter_start(gradcomp_coder *coder, void *in, void *out, const uint64_t *counts,
                                                    gradcomp_dtype dtype, double scale, uint32_t slot,
                                                    gradcomp_coder_request **request, gradcomp_error *err)
{
	(void)coder, (void)in, (void)out, (void)counts, (void)dtype, (void)scale, (void)slot, (void)request;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_all_gather_start(gradcomp_coder *coder, const void *in, void *out,
                                                const uint64_t *counts, gradcomp_dtype dtype,
                                                gradcomp_coder_request **request, gradcomp_error *err)
{
	(void)coder, (void)in, (void)out, (void)counts, (void)dtype, (void)request;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_test(gradcomp_coder_request *request, int *done, gradcomp_error *err)
{
	(void)request, (void)done;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_wait(gradcomp_coder_request *request, gradcomp_error *err)
{
	(void)request;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_save(gradcomp_coder *coder, void *buf, uint64_t capacity, uint64_t *bytes,
                                    gradcomp_error *err)
{
	(void)coder, (void)buf, (void)capacity, (void)bytes;
	return not_yet(err);
}

gradcomp_status gradcomp_coder_load(gradcomp_coder *coder, const void *buf, uint64_t bytes, gradcomp_error *err)
{
	(void)coder, (void)buf, (void)bytes;
	return not_yet(err);
}

void gradcomp_coder_get_stats(gradcomp_coder *coder, gradcomp_coder_stats *stats)
{
	(void)coder, (void)stats;
}

const char *gradcomp_coder_spec(const gradcomp_coder *coder)
{
	(void)coder;
	return "";
}

const char *gradcomp_coder_collective(const gradcomp_coder *coder)
{
	(void)coder;
	return "";
}
