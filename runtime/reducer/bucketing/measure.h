/* From steps that were measured to lines and times: each rank's table of steps becomes
 * words, of which all ranks take the largest, and from those comes a fit.
 *
 * An exchange lasts as long on all ranks but for those who waited in it for others: the
 * shortest time counts, of each exchange by itself. A gradient comes when the slowest rank
 * has it. */
#ifndef REDUCER_BUCKETING_MEASURE_H
#define REDUCER_BUCKETING_MEASURE_H

#include "reducer/bucketing/profile_internal.h"

/* Nanoseconds, most of them. */
enum {
	MEASURE_SLOWEST, /* microseconds from a step to its last gradient, and the rank */
	MEASURE_FASTEST, /* likewise, of MEASURE_LIMIT less than that */
	MEASURE_FEWEST,  /* minus the steps that can be used */
	MEASURE_STEP,
	MEASURE_NOISE,  /* parts in a million */
	MEASURE_ENCODE, /* seconds for all buckets of a step */
	MEASURE_DECODE,
	MEASURE_EACH, /* the program waits for single tensors */
	MEASURE_HEAD  /* then when each tensor comes, then minus the exchanges of every bucket and step */
};
#define MEASURE_LIMIT ((int64_t)1 << 40)
#define MEASURE_NONE INT64_MIN

typedef struct measure {
	uint64_t from, to;  /* steps since creation */
	uint32_t usable;    /* those of them that count */
	double computed[2]; /* this rank's seconds a step, after first exchanges and before them */
	size_t n;
	int64_t *words;
} measure;

typedef struct fit {
	uint32_t ntensors, steps;
	double *arrival;  /* when each tensor comes, from the start of the step; never before the one before it */
	double *backward; /* the part of it that is its own: tensors that came together share by their numbers */
	double forward, step, noise;
	linear exchange;               /* a round's, over its payload bytes */
	linear reduce, spread;         /* those of two levels, over the bucket's numbers */
	linear compute[COMPUTE_KINDS]; /* likewise */
	linear encode, decode;         /* sums of those: before the first exchange, and after */
	/* how far the line of exchanges is off, the median, relative; negative: there was no exchange */
	double error;
	double rounds, bytes; /* a bucket's, the mean; a payload's, for each number */
	int slowest, fastest; /* ranks of the group */
	double slowest_s, fastest_s;
	int each_layer;
} fit;

/* Gives this rank's words of steps [from, now). With the lock held. */
gradcomp_status measure_take(const reducer *r, uint64_t from, measure *m, gradcomp_error *err);
void measure_clear(measure *m);
/* Fits lines to what was measured; what is no time (a clock that jumped, a forged word) counts as none. */
gradcomp_status measure_fit(const reducer *r, const measure *m, fit *f, gradcomp_error *err);
void measure_fit_clear(fit *f);

/* Called with the lock held: makes r->profile's summary, of this rank alone. Without memory it stays. */
void measure_summarise(reducer *r);
/* Takes up the summary of all ranks. */
void measure_agreed(reducer *r, const fit *f);

#endif
