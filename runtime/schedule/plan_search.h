/* Which plan a step gets. A job asks on what it has measured, auto on what it expects of a
 * candidate, `gradcomp plan` on what a machine file says: one search, so that what is advised
 * is what a job would do.
 *
 * The merge rules (merge.h) know a line for exchanges and one for encoding, no more. So their
 * plans are judged by the simulator (sim.h), which knows the rounds of a bucket, the buckets
 * in flight and decoding. With several rounds a bucket AUTO looks beyond the rules: at all plans of
 * a few tensors, and around the rules' plans of more. */
#ifndef SCHEDULE_PLAN_SEARCH_H
#define SCHEDULE_PLAN_SEARCH_H

#include "config/schedule_spec.h"
#include "schedule/sim.h"
#include "schedule/step_plan.h"

typedef struct plan_search {
	/* All but the plan, the buckets and the steps of a prediction; n tensors. Of plan_search_simple()
	 * n alone. */
	sim_input sim;
	const uint64_t *numel;       /* each tensor's */
	uint64_t max_numel;          /* limit of a bucket, by the compressor; 0: none */
	uint64_t first_bytes, bytes; /* sizes of fixed buckets: the first one, and the others */
	/* Tasks and seconds of the bucket of tensors [first, end); *payload: bytes that its
	 * exchanges carry. */
	gradcomp_status (*bucket)(void *ctx, uint32_t index, uint32_t first, uint32_t end, sim_bucket *out,
	                          double *payload, gradcomp_error *err);
	void *ctx;
} plan_search;

typedef struct plan_found {
	step_plan plan; /* with what it is predicted to take; without buckets: there is none */
	double exposed;
	char name[48]; /* the rule that made it: "mgwfbp", "omgs, lag 0" */
} plan_found;

/* Gives the plan of a method that needs no times: WFBP, SINGLE or FIXED. */
gradcomp_status plan_search_simple(const plan_search *s, schedule_method method, step_plan *out, gradcomp_error *err);
/* Predicts what a step takes with a plan. The events, where they are asked for, are to be freed. */
gradcomp_status plan_search_predict(const plan_search *s, const step_plan *p, int with_events, sim_output *out,
                                    gradcomp_error *err);

/* MGWFBP and OMGS give way to a simple plan that is predicted to be better by so much. */
#define PLAN_SEARCH_SIMPLE 0.02
/* A simple plan that is predicted to be worse by at most so much is worth running against
 * the one that was found. */
#define PLAN_SEARCH_CANDIDATE 0.1
/* The most bytes of a bucket of several tensors, or four times `bytes` where that is more: a
 * bucket takes workspace of its size, and beyond some size nothing is won by merging. */
#define PLAN_SEARCH_MOST_BYTES ((uint64_t)100 << 20)
/* The plan of a method that needs times: MGWFBP, OMGS, or AUTO, which takes the best of all
 * rules with both lags, and where the program waits for layers in orders that let its first
 * layers go first.
 * *candidate, NULL or the simple plan that is worth running against it (a plan without buckets:
 * there is none): of several the one whose number of messages is the most different, because
 * that shows what the line of seconds over bytes does not know. */
gradcomp_status plan_search_run(const plan_search *s, schedule_method method, plan_found *out, plan_found *candidate,
                                gradcomp_error *err);

/* Gives the plan of a schedule, whatever its method. `hash`: of the tensors (plan_file.h); the plan of a file must
 * be of the same ones, else MISMATCH. */
gradcomp_status plan_search_plan(const plan_search *s, const schedule_spec *spec, uint64_t hash, step_plan *out,
                                 gradcomp_error *err);

#endif
