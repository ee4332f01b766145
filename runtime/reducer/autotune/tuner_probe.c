/* The first look at the network: the base's links are made, and a few all-reduces of zeroes
 * are timed on them, of less than a megabyte together. Where a dense exchange of the model
 * will take long, candidates are measured while the program gets ready. */
#include "reducer/autotune/tuner.h"

#include "base/error.h"

#include <stdlib.h>

enum { SMALL = 1 << 14, LARGE = 1 << 17 }; /* floats */
#define LONG_S 0.05 /* of a dense step's exchange */

static gradcomp_status timed(const coll_ctx *p, float *zeroes, uint64_t count, double *seconds, gradcomp_error *err)
{
	double start = clock_now();
	gradcomp_status st =
		p->collective->allreduce(p->instance, zeroes, count, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	*seconds = clock_now() - start;
	return st;
}

gradcomp_status tuner_probe(tuner *c, gradcomp_error *err)
{
	const coll_ctx *p = &c->partition->sub[0].r->eng.coll_ctx;
	double small = 0, large = 0;
	gradcomp_status st = GRADCOMP_OK;
	if (c->group->nranks == 1 || !(p->collective->serves & GRADCOMP_CAN_ALLREDUCE))
		return GRADCOMP_OK;
	float *zeroes = calloc(LARGE, sizeof *zeroes);
	if (!zeroes) {
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory to time the network");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time the network");
	}
	/* The first one connects, and the ranks come to the second together. */
	for (int i = 0; !st && i < 2; i++)
		st = timed(p, zeroes, SMALL, &small, err);
	if (!st)
		st = timed(p, zeroes, LARGE, &large, err);
	free(zeroes);
	if (st) {
		job_fail(c->job, st, err->text);
		return st;
	}
	c->gone.wire_bytes -= (double)channel_sent(p->channel);
	double bytes = sizeof(float), b = (large - small) / ((LARGE - SMALL) * bytes);
	c->probed.b = b > 0 ? b : large / (LARGE * bytes);
	c->probed.a = small - c->probed.b * SMALL * bytes;
	c->probed.a = c->probed.a > 0 ? c->probed.a : 0;
	c->measure = c->probed.b * (double)c->layout.numel * bytes > LONG_S;
	return GRADCOMP_OK;
}
