/* gradcomp bench: what its parts share. */
#ifndef TOOLS_BENCH_H
#define TOOLS_BENCH_H

#include "base/clock.h"
#include "base/fit.h"
#include "gradcomp/gradcomp.h"
#include <stdio.h>

enum { BENCH_SIZES = 32, BENCH_TENSORS = 256, BENCH_DIMS = 8, BENCH_WARM_UP = 3 };

typedef struct bench_shape {
	uint64_t dims[BENCH_DIMS];
	uint32_t ndim;
} bench_shape;

typedef struct bench_options {
	uint64_t sizes[BENCH_SIZES]; /* bytes */
	uint32_t nsizes;
	bench_shape shapes[BENCH_TENSORS];
	uint32_t ntensors;
	long iters;
	long resident_before;                  /* bytes, before the job was joined */
	const char *json;                      /* NULL: none */
	const char *collectives, *compressors; /* "SPEC,SPEC"; NULL: all, and none */
	const char *primitives;                /* "NAME,NAME"; NULL: all */
	double seconds;                        /* about so long a row */
} bench_options;

/* Each measures on all ranks, prints a table on rank 0 and appends rows to `json`
 * when it is not NULL. 0, or negative with *err filled. */
int bench_allreduce(gradcomp_job *job, const bench_options *o, FILE *json, gradcomp_error *err);
int bench_collectives(gradcomp_job *job, const bench_options *o, FILE *json, gradcomp_error *err);
int bench_reduce(gradcomp_job *job, const bench_options *o, FILE *json, gradcomp_error *err);

/* Bytes of memory this process has in use, shared ones included; 0: unknown. */
long bench_resident(void);
/* The median over samples of the slowest rank's time; sorts `seconds`. */
gradcomp_status bench_median(gradcomp_group *world, double *seconds, long n, double *out, gradcomp_error *err);
/* Fills *err with an error of this program itself. Returns -1. */
int bench_failed(gradcomp_error *err, gradcomp_status status, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);
/* gradcomp bench compressors: of one process, without a job. The exit status. */
int bench_compressors(int argc, char **argv);
/* gradcomp bench io: makes its own job. The exit status. */
int bench_io(int argc, char **argv);

#endif
