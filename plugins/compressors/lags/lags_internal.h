/* The parts of lags share this: lags.c makes instances, has the steps, saves and loads; times.c measures and
 * agrees; lags_density.h is the arithmetic. */
#ifndef PLUGINS_COMPRESSORS_LAGS_LAGS_INTERNAL_H
#define PLUGINS_COMPRESSORS_LAGS_LAGS_INTERNAL_H

#include "plugins/compressors/lags/lags_density.h"
#include "gradcomp/sdk/sparse.h"

#define LAGS_NEVER UINT64_MAX

/* The ranks agree on this for a tensor. `known`: its backward pass was measured. */
typedef struct lags_agreed {
	uint64_t step; /* when it was agreed; it holds from the next step on */
	float latency, per_byte, per_number, backward, known, reserved;
} lags_agreed;

/* This rank has measured this for a tensor. */
typedef struct lags_measured {
	double began;    /* when encoding began of the bucket that it is the last of, */
	uint64_t step;   /* in this step */
	double backward; /* sum over so many steps */
	uint64_t steps;
	double seconds[2], bytes[2]; /* the shortest exchange of a bucket that it is the first of, for both sizes */
} lags_measured;

typedef struct lags {
	sdk_sparse s; /* first */
	int adaptive, on_device;
	double max_ratio;
	uint64_t agree_step; /* the first at which ranks agree */
	float *given;        /* densities by tensor of the layout; NULL: the schedule's */
	lags_agreed *agreed; /* by tensor; NULL unless adaptive */
	lags_measured *measured;
	double selecting, selected; /* seconds, numbers */
	char (*choice)[24];         /* by tensor */
} lags;

/* Keeps the times of one bucket in flight, at the end of scratch. */
typedef struct lags_in_flight {
	double began, chosen; /* when encoding began and was done */
} lags_in_flight;

double lags_now(void);
/* Returns 1 when the bucket's tensors have still to be agreed on in this step: then round 0 is a mean of
 * lags_floats() floats. */
int lags_agrees(const lags *l, const gradcomp_bucket *bucket, uint64_t step);
uint64_t lags_floats(const gradcomp_bucket *bucket);
/* Returns the density that was agreed on, or `otherwise`. */
double lags_density_of(const lags *l, uint32_t tensor, uint64_t step, double otherwise);

/* This rank's times of a bucket's tensors; the mean of all ranks'. `line` is room for
 * lags_line() doubles. */
uint64_t lags_line(const lags *l);
void lags_tell(const lags *l, const gradcomp_bucket *bucket, double *line, float *out);
void lags_take(lags *l, const gradcomp_bucket *bucket, uint64_t step, const float *mean);
/* Takes what the host has measured and all ranks agree on, from `step` on. */
gradcomp_status lags_told(void *instance, const gradcomp_measured *m, uint64_t step, gradcomp_error *err);
/* Notes an exchange that brought its payloads at `arrived`. */
void lags_note(lags *l, const gradcomp_bucket *bucket, uint64_t step, const lags_in_flight *f, double arrived);

gradcomp_status lags_save(void *instance, void *out, uint64_t capacity, uint64_t *bytes, gradcomp_error *err);
gradcomp_status lags_load(void *instance, const void *in, uint64_t bytes, gradcomp_error *err);

#endif
