/* The schedule of a model's steps on a machine, and what the simulator says of it. */
#ifndef COST_PLAN_CHOICE_H
#define COST_PLAN_CHOICE_H

#include "cost/cost.h"
#include "schedule/plan_search.h"

typedef struct plan_choice {
	step_plan plan; /* with what it is predicted to take */
	sim_output sim; /* events where they were asked for */
	bucket_cost cost;
	double least, most; /* seconds of a step, by the spread of what was measured */
} plan_choice;

/* The question's schedule, each_layer, no_read_ahead, step_alone, classes and whether there is a trace count. *out is to
 * be cleared when it was OK. */
gradcomp_status plan_choose(cost_model *c, const cost_question *q, plan_choice *out, gradcomp_error *err);
void plan_choice_clear(plan_choice *p);
/* Returns the speed of the question's slowest rank. */
double plan_slowest_speed(const cost_question *q);
/* Hashes all tensors of the model (plan_file.h). */
uint64_t plan_model_hash(const model_file *model);

#endif
