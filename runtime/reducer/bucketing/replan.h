/* How a reducer's tensors are merged into messages: as asked, or by a plan made from what the
 * job has measured, and made again when that has changed (profile.h says what is measured,
 * plan_search.h how a plan is found).
 *
 * Plans that are measured come about like this. The first schedule.profile_steps steps run
 * with fixed buckets, with many small ones and with few large ones, so that there are
 * messages of several sizes to put a line through. Then the ranks gather what they have
 * measured, the group's first one searches and sends the plan to all, which check and apply it.
 * Where a simple plan is predicted to be about as good, both are run for REPLAN_TRIAL_STEPS
 * and the faster one stays.
 *
 * Every schedule.replan_steps steps they look again; a new plan is made when the passes or the
 * exchanges have come to take another time, by more than REPLAN_DRIFT, and taken when it is
 * predicted to be 2 % better.
 *
 * All ranks come to replan_run() between the same two steps: replan_step_over() counts
 * steps, nothing else, so no message is needed to agree on when. */
#ifndef REDUCER_BUCKETING_REPLAN_H
#define REDUCER_BUCKETING_REPLAN_H

#include "schedule/step_plan.h"
#include "config/schedule_spec.h"
#include "reducer/reducer.h"

/* Holds what is asked of a schedule, from its SPEC and the settings. */
typedef struct schedule_request {
	schedule_spec spec;
	uint64_t bucket_bytes, first_bucket_bytes;
	uint32_t profile_steps, replan_steps;
} schedule_request;

/* `asked`: NULL for the setting's. bucket_bytes: the option, 0 for none. To be cleared either way. */
gradcomp_status replan_request_read(spec_table *specs, const char *asked, uint64_t bucket_bytes, schedule_request *out,
                                    gradcomp_error *err);
void replan_request_clear(schedule_request *q);
/* Hashes what the SPEC does not say, with the plan of its file; NULL: it has none. */
uint64_t replan_request_hash(const schedule_request *q, const step_plan *file);

/* Takes what is asked: the SPEC, NULL for the setting's, and the option bucket_bytes, 0 for none. Sets the
 * reducer's bucket_bytes, and r->replan. */
gradcomp_status replan_open(reducer *r, const char *spec, uint64_t bucket_bytes, gradcomp_error *err);
/* When the layout is there: a plan file's plan, whether it is of this model. */
gradcomp_status replan_file(reducer *r, gradcomp_error *err);
void replan_close(reducer *r);
/* All ranks must agree on these: the SPEC, and a hash of what else it comes to. */
const char *replan_asked(const reducer *r);
uint64_t replan_hash(const reducer *r);
/* Steps whose measurements are to be kept. */
uint32_t replan_rows(const reducer *r);
/* Gives the plan of the first step, to be cleared. */
gradcomp_status replan_first(const reducer *r, step_plan *out, gradcomp_error *err);

/* Called with the lock held, when a step has ended (r->eng.step is the next one): sets r->replan_due when the ranks
 * are to replan before the next step begins. */
void replan_step_over(reducer *r);
/* Called on the exchange thread, without the lock, when no bucket has begun the step: gathers, searches, applies. A
 * failure is the job's; that a rank cannot have a plan is none. */
gradcomp_status replan_run(reducer *r, gradcomp_error *err);

/* For the report, to be freed; NULL without memory. When the reducer's threads have ended. */
report_schedule *replan_report(const reducer *r);

/* Called with the lock held: a state was loaded, and its plan with it. `settled`: that had been made from
 * measurements, and stays until times drift; else all is measured anew. What is under way (plans that are compared,
 * or measured again) ends. */
void replan_loaded(reducer *r, int settled);
int replan_settled(const reducer *r);

#endif
