/* The public handle of a reducer. There are several kinds: one that reduces (reducer.h), and
 * some that stand before others and forward to them (kinds/). Each kind's struct begins with this one. */
#ifndef REDUCER_REDUCER_OPS_H
#define REDUCER_REDUCER_OPS_H

#include "gradcomp/gradcomp.h"
#include "job/job.h"

/* Within the library a reducer is reached through this table. Its functions do what the public ones of the same
 * names do (api/reducer_calls.c), which are for the program alone. */
typedef struct reducer_ops {
	gradcomp_status (*ready)(gradcomp_reducer *r, uint32_t index, void *gradient, gradcomp_error *err);
	gradcomp_status (*wait)(gradcomp_reducer *r, gradcomp_error *err);
	gradcomp_status (*wait_for)(gradcomp_reducer *r, uint32_t index, gradcomp_error *err);
	gradcomp_status (*follow)(gradcomp_reducer *r, uint32_t index, void *queue, gradcomp_error *err);
	gradcomp_status (*drain)(gradcomp_reducer *r, void *const *corrections, void *const *weights, double rate,
	                         gradcomp_error *err);
	gradcomp_status (*save)(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
	                        gradcomp_error *err);
	gradcomp_status (*save_shared)(gradcomp_reducer *r, void *buf, uint64_t capacity, uint64_t *bytes,
	                               gradcomp_error *err);
	gradcomp_status (*load)(gradcomp_reducer *r, const void *buf, uint64_t bytes, gradcomp_error *err);
	void (*get_stats)(gradcomp_reducer *r, gradcomp_reducer_stats *stats);
	void (*free)(gradcomp_reducer *r);
	/* The row of a report before the reducer is freed; tensors and schedule only if they can be had
	 * soon. All of it is the caller's, for job_drop_reducer(). Any thread. */
	void (*row)(gradcomp_reducer *r, report_reducer *row);
} reducer_ops;

struct gradcomp_reducer {
	const reducer_ops *ops;
	/* Takes over the row of the report when it is freed; NULL: the job does. Who stands before
	 * a reducer sets it. */
	void (*report)(void *ctx, report_reducer *row);
	void *report_ctx;
	job_part part; /* its place among what the program has */
};

/* NULL is fine. */
static inline void reducer_dispose(gradcomp_reducer *r)
{
	if (r)
		r->ops->free(r);
}

#endif
