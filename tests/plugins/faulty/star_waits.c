/* links: every rank waits for its neighbour before it sends. */
#define FAULT_NAME "star_waits"
#include "gradcomp/collective.h"

#define FAULT_ALLREDUCE
#include "tests/plugins/faulty_collective.h"

static gradcomp_status star_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                      double scale, gradcomp_error *err)
{
	const star *s = instance;
	int P = s->links->nranks, me = s->links->rank;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	gradcomp_status st = GRADCOMP_OK;
	(void)op, (void)scale;
	if (P > 1)
		st = take(s, (me + P - 1) % P, buf, bytes, err);
	return st || P == 1 ? st : give(s, (me + 1) % P, buf, bytes, err);
}
