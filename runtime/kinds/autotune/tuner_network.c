/* auto times what the network takes. */
#include "kinds/autotune/tuner_gpu.h"
#include "kinds/autotune/tuner_internal.h"

#include "base/error.h"

#include <stdlib.h>

/* The base's links are made, and a few all-reduces of zeroes are timed on them, of less than a
 * megabyte together. Where a dense exchange of the model will take long, candidates are measured
 * while the program gets ready. */
enum { SMALL = 1 << 14, LARGE = 1 << 17 }; /* floats */
enum { FITS = 2 };
#define LONG_S 0.05 /* seconds of a dense step's exchange */

static gradcomp_status timed(tuner *c, float *zeroes, uint64_t count, double *seconds, gradcomp_error *err)
{
	const coll_ctx *p = &c->parts.partition->sub[0].r->eng.coll_ctx;
	if (c->gpu)
		return tuner_gpu_timed(c, count, seconds, err);
	double start = clock_now();
	gradcomp_status st = p->collective->allreduce(p->instance, zeroes, count, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	*seconds = clock_now() - start;
	return st;
}

/* Returns the line over bytes through two numbers of floats. */
static linear line_through(uint64_t few, double of_few, uint64_t many, double of_many)
{
	double bytes = sizeof(float), b = (of_many - of_few) / ((double)(many - few) * bytes);
	linear l = {.b = b > 0 ? b : of_many / ((double)many * bytes)};
	l.a = of_few - l.b * (double)few * bytes;
	l.a = l.a > 0 ? l.a : 0;
	return l;
}

/* Takes the first look at the network. Collective. */
gradcomp_status tuner_probe(tuner *c, gradcomp_error *err)
{
	const coll_ctx *p = &c->parts.partition->sub[0].r->eng.coll_ctx;
	double small = 0, large = 0;
	gradcomp_status st = GRADCOMP_OK;
	if (c->group->nranks == 1 || !(p->collective->serves & GRADCOMP_CAN_ALLREDUCE))
		return GRADCOMP_OK;
	float *zeroes = calloc(c->gpu ? 1 : LARGE, sizeof *zeroes);
	if (!zeroes) {
		job_fail(c->job, GRADCOMP_ERR_NOMEM, "no memory to time the network");
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time the network");
	}
	/* The first one connects, and the ranks come to the second together. */
	for (int i = 0; !st && i < 2; i++)
		st = timed(c, zeroes, SMALL, &small, err);
	if (!st)
		st = timed(c, zeroes, LARGE, &large, err);
	free(zeroes);
	if (st) {
		job_fail(c->job, st, err->text);
		return st;
	}
	if (!c->gpu)
		c->parts.gone.wire_bytes -= (double)channel_sent(p->channel);
	c->network.probed = line_through(SMALL, small, LARGE, large);
	c->turns.measure = c->network.probed.b * (double)c->layout.numel * sizeof(float) > LONG_S;
	return GRADCOMP_OK;
}

gradcomp_status tuner_fit(tuner *c, uint32_t bytes, gradcomp_error *err)
{
	const coll_ctx *p = &c->parts.partition->sub[0].r->eng.coll_ctx;
	const uint64_t large = bytes / sizeof(float), small = large / 4;
	double seconds, of_small = 0, of_large = 0, sent = (double)channel_sent(p->channel);
	gradcomp_status st = GRADCOMP_OK;
	if (!(p->collective->serves & GRADCOMP_CAN_ALLREDUCE))
		return GRADCOMP_OK;
	float *zeroes = calloc(c->gpu ? 1 : large, sizeof *zeroes);
	if (!zeroes)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time all-reduces of %u bytes", bytes);
	/* The ranks come to the first one at different times. */
	if (!st)
		st = timed(c, zeroes, small, &seconds, err);
	for (int i = 0; !st && i < FITS; i++) {
		st = timed(c, zeroes, small, &seconds, err);
		of_small = !i || seconds < of_small ? seconds : of_small;
		if (!st)
			st = timed(c, zeroes, large, &seconds, err);
		of_large = !i || seconds < of_large ? seconds : of_large;
	}
	free(zeroes);
	if (st) {
		job_fail(c->job, st, err->text);
		return st;
	}
	c->parts.gone.wire_bytes -= (double)channel_sent(p->channel) - sent;
	c->network.fitted = line_through(small, of_small, large, of_large);
	c->network.fit_bytes = bytes;
	return GRADCOMP_OK;
}
