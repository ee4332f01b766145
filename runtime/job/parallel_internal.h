/* Inside of gradcomp_parallel: which rank does which pieces, and whether sharing is faster. */
#ifndef JOB_PARALLEL_INTERNAL_H
#define JOB_PARALLEL_INTERNAL_H

#include "job/device_coll.h"

struct gradcomp_parallel {
	gradcomp_group *group;
	coll_ctx coll_ctx; /* on a channel of its own, so that the application's collectives keep their order */
	uint32_t n;
	uint64_t *bytes; /* each piece's */
	uint64_t total;
	char *gathered;   /* total bytes: the pieces one after another, where the caller's are not */
	uint32_t *cut;    /* nranks + 1: rank r does pieces cut[r]..cut[r + 1] - 1 */
	uint64_t *blocks; /* bytes of each rank's run */
	double *seconds;  /* n + 1: of each piece, and of gathering them; the shortest of this measurement */
	uint64_t calls;
	int shared;
	double (*now)(void); /* clock_now(), but in tests */
	/* These are for pieces on a device, where there are other ranks; else NULL: */
	device_coll *device; /* `gathered` is there too */
	void *queue;
	void **marks; /* n + 1 timers: of the beginning, and after each piece */
	char reason[256];
};

/* Calls that are timed at first, and every PARALLEL_AGAIN calls: all pieces, then shares. */
#define PARALLEL_FIRST 4
#define PARALLEL_AGAIN 100

/* Cuts n pieces into at most `runs` runs of neighbours so that the heaviest is as light as
 * can be: run r has pieces cut[r]..cut[r + 1] - 1. Returns the weight of the heaviest. */
double parallel_cut(const double *weight, uint32_t n, uint32_t runs, uint32_t *cut);

#endif
