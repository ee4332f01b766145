#include "plugins/common/collectives/barrier.h"

gradcomp_status barrier_disseminate(const gradcomp_links *l, gradcomp_error *err)
{
	gradcomp_request came, went;
	gradcomp_status st = GRADCOMP_OK;
	char out = 0, in;
	for (int64_t d = 1; !st && d < l->nranks; d <<= 1) {
		st = l->recv(l->ctx, (int)((l->rank + l->nranks - d) % l->nranks), &in, 1, &came, err);
		if (!st)
			st = l->send(l->ctx, (int)((l->rank + d) % l->nranks), &out, 1, &went, err);
		if (!st)
			st = l->wait(l->ctx, &came, err);
		if (!st)
			st = l->wait(l->ctx, &went, err);
	}
	return st;
}
