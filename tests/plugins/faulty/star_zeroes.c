/* agreement: of the larger or smaller every rank takes its own first, and of 0 and -0 has its own. */
#define FAULT_NAME "star_zeroes"
#include "gradcomp/collective.h"

#define FAULT_ALLREDUCE
#include "tests/plugins/faulty_collective.h"

static gradcomp_status star_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                      double scale, gradcomp_error *err)
{
	const star *s = instance;
	int P = s->links->nranks, me = s->links->rank;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	char *all = malloc((size_t)P * bytes + 1);
	gradcomp_status st = all ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
	if (!st)
		memcpy(all + (size_t)me * bytes, buf, bytes);
	for (int root = 0; !st && root < P; root++)
		st = tell(s, all + (size_t)root * bytes, bytes, root, err);
	if (!st && op == GRADCOMP_SUM)
		memcpy(buf, all, bytes);
	for (int r = op == GRADCOMP_SUM; !st && r < P; r++)
		s->host->operators->reduce(NULL, buf, all + (size_t)r * bytes, count, dtype, op);
	free(all);
	if (!st && op == GRADCOMP_SUM && scale != 1.0 && dtype <= GRADCOMP_F64)
		s->host->operators->scale_as(NULL, buf, scale, count, dtype);
	return st;
}
