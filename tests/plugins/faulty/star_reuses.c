/* primitives: changes what it sends before it is sent. */
#define FAULT_NAME "star_reuses"
#include "gradcomp/collective.h"

#define FAULT_ALLREDUCE
#include "tests/plugins/faulty_collective.h"

static gradcomp_status star_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                      double scale, gradcomp_error *err)
{
	const star *s = instance;
	int P = s->links->nranks, me = s->links->rank;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	char *theirs = malloc(bytes + 1);
	gradcomp_request out[16];
	gradcomp_status st = theirs ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
	for (int r = 0; !st && r < P; r++)
		if (r != me)
			st = s->links->send(s->links->ctx, r, buf, bytes, &out[r], err);
	for (int r = 0; !st && r < P; r++)
		if (r != me) {
			st = take(s, r, theirs, bytes, err);
			if (!st)
				s->host->operators->reduce(NULL, buf, theirs, count, dtype, op);
		}
	for (int r = 0; !st && r < P; r++)
		if (r != me)
			st = s->links->wait(s->links->ctx, &out[r], err);
	free(theirs);
	if (op == GRADCOMP_SUM && scale != 1.0 && dtype <= GRADCOMP_F64)
		s->host->operators->scale_as(NULL, buf, scale, count, dtype);
	return st;
}
