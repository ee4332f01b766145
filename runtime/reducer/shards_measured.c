/* Two levels: what was measured of tensors, told of their parts. */
#include "shards_parts.h"

#include "error.h"

#include <stdlib.h>
#include <string.h>

gradcomp_status shards_measured(gradcomp_reducer *r, const gradcomp_measured *m, gradcomp_error *err)
{
	struct shards *s = r->shards;
	memcpy(s->backward, m->backward, r->layout.ntensors * sizeof *s->backward);
	s->measured = *m;
	s->measured.backward = s->backward;
	return shards_tell(r, s, err);
}

gradcomp_status shards_tell(const gradcomp_reducer *r, const struct shards *s, gradcomp_error *err)
{
	const gradcomp_measured *m = &s->measured;
	const gradcomp_reducer *in = &s->inner;
	uint32_t n = in->layout.ntensors;
	gradcomp_measured part = *m;
	double *backward = calloc(n + 1, sizeof *backward);
	gradcomp_status st = GRADCOMP_OK;
	if (!backward)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the times of %u tensors", n);
	for (uint32_t i = 0; i < n; i++) {
		uint64_t whole = r->tensors[s->origin[i]].numel;
		backward[i] = whole ? m->backward[s->origin[i]] * (double)in->tensors[i].numel / (double)whole : 0;
	}
	part.ntensors = n;
	part.backward = backward;
	if (in->instance)
		st = r->compressor->measured(in->instance, &part, r->step, err);
	free(backward);
	return st;
}
