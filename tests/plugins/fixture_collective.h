/* A collective that can be looked at and not run; see fixture_compressor.h. */
#include "gradcomp/collective.h"

#ifndef FIXTURE_ALLREDUCE
#define FIXTURE_ALLREDUCE NULL
#endif
#ifndef FIXTURE_ALLGATHER
#define FIXTURE_ALLGATHER NULL
#endif
#ifndef FIXTURE_PREDICT
#define FIXTURE_PREDICT NULL
#endif
#ifndef FIXTURE_EXCHANGE
#define FIXTURE_EXCHANGE NULL
#endif

static gradcomp_status fixture_create(const gradcomp_host *host, const gradcomp_value *values,
                                      const gradcomp_links *links, void **instance, gradcomp_error *err)
{
	(void)values, (void)links, (void)instance;
	return host->fail(err, GRADCOMP_ERR_UNSUPPORTED, "a fixture does not run");
}

static void fixture_destroy(void *instance)
{
	(void)instance;
}

__attribute__((unused)) static gradcomp_status fixture_allreduce(void *instance, void *buf, uint64_t count,
                                                                 gradcomp_dtype dtype, gradcomp_op op, double scale,
                                                                 gradcomp_error *err)
{
	(void)instance, (void)buf, (void)count, (void)dtype, (void)op, (void)scale, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

__attribute__((unused)) static gradcomp_status fixture_allgather(void *instance, void *buf, const uint64_t *bytes,
                                                                 gradcomp_error *err)
{
	(void)instance, (void)buf, (void)bytes, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

__attribute__((unused)) static gradcomp_status fixture_exchange(void *instance, const gradcomp_exchange *x,
                                                                gradcomp_error *err)
{
	(void)instance, (void)x, (void)err;
	return GRADCOMP_ERR_UNSUPPORTED;
}

__attribute__((unused)) static uint64_t fixture_resident(void *instance, uint64_t count)
{
	(void)instance;
	return count;
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info =
		{
			.abi_version = GRADCOMP_ABI_VERSION,
			.struct_size = sizeof(struct gradcomp_collective_v1),
			.name = FIXTURE_NAME,
			.version = "0.1",
			.summary = "a fixture",
			.licence = "Apache-2.0",
		},
	.serves = FIXTURE_SERVES,
	.create = fixture_create,
	.destroy = fixture_destroy,
	.allreduce = FIXTURE_ALLREDUCE,
	.allgather = FIXTURE_ALLGATHER,
	.exchange = FIXTURE_EXCHANGE,
	.server_error = fixture_resident,
	.predict = FIXTURE_PREDICT,
};
