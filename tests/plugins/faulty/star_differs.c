/* agreement: every rank begins the sum with itself. */
#define FAULT_NAME "star_differs"
#include "gradcomp/collective.h"

#define FAULT_ALLREDUCE
#include "tests/plugins/faulty_collective.h"

static gradcomp_status star_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                      double scale, gradcomp_error *err)
{
	const star *s = instance;
	int P = s->links->nranks, me = s->links->rank;
	size_t bytes = count * gradcomp_dtype_bytes(dtype);
	char *own = malloc(bytes + 1), *theirs = malloc(bytes + 1);
	gradcomp_status st = own && theirs ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
	if (!st)
		memcpy(own, buf, bytes);
	for (int far = 1; !st && far < P; far++) {
		gradcomp_request in, out;
		st = s->links->send(s->links->ctx, (me + far) % P, own, bytes, &out, err);
		st = st ? st : s->links->recv(s->links->ctx, (me + P - far) % P, theirs, bytes, &in, err);
		st = st ? st : s->links->wait(s->links->ctx, &in, err);
		st = st ? st : s->links->wait(s->links->ctx, &out, err);
		if (!st)
			s->host->operators->reduce(NULL, buf, theirs, count, dtype, op);
	}
	free(own);
	free(theirs);
	if (op == GRADCOMP_SUM && scale != 1.0 && dtype <= GRADCOMP_F64)
		s->host->operators->scale_as(NULL, buf, scale, count, dtype);
	return st;
}
