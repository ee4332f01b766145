/* gradcomp probe: what its parts share. All ranks go through the same measurements; whether
 * to take one more sample follows from numbers that are equal on all of them. */
#ifndef TOOLS_PROBE_H
#define TOOLS_PROBE_H

#include "tools/bench_specs.h"
#include "base/fit.h"

#include "gradcomp/collective.h"
#include "cost/planning.h"

#include <stdbool.h>

enum { PROBE_SPECS = 64, PROBE_SAMPLES = 32, PROBE_POINTS = 8 };

typedef struct probe {
	gradcomp_job *job;
	gradcomp_group *world;
	gradcomp_group *node;              /* ranks of this node */
	gradcomp_group *leaders;           /* the first rank of each node; NULL on others */
	gradcomp_group *alone;             /* this rank */
	int rank, nranks, nodes, per_node; /* per_node: of the largest node */
	double seconds;                    /* to be spent in all */
	uint64_t numbers;                  /* size of the largest bucket */
	int sleeping;                      /* the program computes elsewhere (a GPU) */
	bench_spec compressors[PROBE_SPECS], collectives[PROBE_SPECS];
	int ncompressors, ncollectives;
	int named_compressors, named_collectives; /* by the user: one that cannot be used ends it */
	machine_file *m;                          /* the result: on all ranks */
	double noise;                             /* the largest relative error of a line; of `noisy` */
	double off;                               /* the sum of those of all lines */
	int nlines;
	char noisy[300];
} probe;

/* Each fills its part of p->m, in about `seconds`. */
gradcomp_status probe_levels(probe *p, double seconds, gradcomp_error *err);
gradcomp_status probe_speeds(probe *p, double seconds, gradcomp_error *err);
gradcomp_status probe_compressors(probe *p, double seconds, gradcomp_error *err);
gradcomp_status probe_collectives(probe *p, double seconds, gradcomp_error *err);

/* The largest of all ranks' numbers, which all get. No rank leaves before all have come. */
gradcomp_status probe_slowest(const probe *p, double *seconds, gradcomp_error *err);
/* A barrier of all ranks, so that what is timed begins together. */
gradcomp_status probe_barrier(const probe *p, gradcomp_error *err);
/* A line through points of u = 1; notes how far it is off. */
linear probe_line(probe *p, const fit_point *points, int n, const char *what);
/* Through the first and the last of points of growing x: a network may let short messages pass
 * faster than its bandwidth, up to some bytes, which tells nothing of those that fill it. */
linear probe_ends(const fit_point *points, int n);
/* Leaves out what cannot be measured, for the reason of this rank (or of another: ""). Fails with it when it was
 * named, else says so. */
gradcomp_status probe_leave_out(const probe *p, int named, const char *spec, const char *why, gradcomp_error *err);
/* Fills *err with GRADCOMP_ERR_NOMEM. */
void probe_nomem(gradcomp_error *err, const char *what);
/* On stderr of rank 0. */
void probe_say(const probe *p, const char *fmt, ...) GRADCOMP_PRINTF(2, 3);

/* The table of it, on stdout. */
void probe_show(const machine_file *m);

/* Samples of something, until their median is known well enough for the time there is. */
typedef struct probe_samples {
	double seconds[PROBE_SAMPLES];
	double spent, most; /* seconds */
	int n;
} probe_samples;
/* Returns true when there should be another; the same on all ranks if what is added is. */
bool probe_wants(const probe_samples *s);
void probe_add(probe_samples *s, double seconds);
double probe_median(probe_samples *s);

#endif
