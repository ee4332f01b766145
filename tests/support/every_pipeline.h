/* Every way to cut layers into stages and to give them ranks. */
#ifndef TESTS_SUPPORT_EVERY_PIPELINE_H
#define TESTS_SUPPORT_EVERY_PIPELINE_H

#include "cost/pipeline.h"

#include <math.h>

typedef struct every_plan {
	const pipeline_problem *p;
	pipeline_plan at, best; /* best.seconds negative: none has the memory it needs */
	double least_memory;    /* the least of all plans; infinite: there are none */
} every_plan;

/* All plans that go on from the stages of e->at, which are of the first layers. */
static inline void every_plan_from(every_plan *e, uint32_t layer, uint32_t units)
{
	const pipeline_problem *p = e->p;
	if (layer == p->nlayers) {
		if (units != p->units)
			return;
		pipeline_value(p, &e->at);
		e->least_memory = fmin(e->least_memory, e->at.memory);
		if (e->at.memory <= p->memory && (e->best.seconds < 0 || e->at.seconds < e->best.seconds))
			e->best = e->at;
		return;
	}
	for (uint32_t last = layer; last < p->nlayers; last++)
		for (uint32_t c = 0; c < p->nchoices; c++) {
			const pipeline_cost *cost = &p->costs[(layer * p->nlayers + last) * p->nchoices + c];

			if (cost->seconds < 0 || units + p->takes[c] > p->units)
				continue;
			e->at.stages[e->at.nstages++] = (pipeline_stage){layer, last + 1 - layer, c};
			every_plan_from(e, last + 1, units + p->takes[c]);
			e->at.nstages--;
		}
}

static inline void every_plan_of(every_plan *e, const pipeline_problem *p)
{
	e->p = p;
	e->at.nstages = 0;
	e->best.seconds = -1;
	e->least_memory = INFINITY;
	every_plan_from(e, 0, 0);
	e->p = NULL; /* it may be gone before *e is */
}

#endif
