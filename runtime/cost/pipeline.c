#include "cost/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Where a row of best[] is finite: from lo to hi; lo above hi: nowhere. */
typedef struct extent {
	uint32_t lo, hi;
} extent;

/* best[s][k][d]: of layers k and up on d units in s stages; from[s][k][d]: the first of these
 * stages, its last layer * nchoices + choice. */
typedef struct search {
	const pipeline_problem *p;
	uint32_t most;    /* stages */
	size_t row, slab; /* sizes in `best`: of d, and of k with d */
	extent *extents;  /* one for each [s][k] */
	double *best;
	uint32_t *from;
	double *bounds; /* every value that the maximum can have, ascending */
	uint32_t nbounds;
} search;

static const pipeline_cost *cost_of(const pipeline_problem *p, uint32_t first, uint32_t last, uint32_t choice)
{
	return &p->costs[((size_t)first * p->nlayers + last) * p->nchoices + choice];
}

static double pace_of(const pipeline_problem *p, const pipeline_cost *c)
{
	return (p->microbatches - 1.0) * c->seconds + c->once;
}

/* Returns the memory with `behind` stages from this one, included, to the end. */
static double memory_of(const pipeline_problem *p, const pipeline_cost *c, uint32_t behind)
{
	return c->fixed + (behind < p->microbatches ? behind : p->microbatches) * c->kept;
}

static int allowed(const pipeline_problem *p, uint32_t choice)
{
	return p->only < 0 || choice == (uint32_t)p->only;
}

/* Returns what a stage adds to the sum, or its memory when the least of the largest is sought; infinite where it is
 * out of bounds. */
static double stage_value(const pipeline_problem *p, const pipeline_cost *c, uint32_t behind, double bound,
                          int by_memory)
{
	if (c->seconds < 0)
		return INFINITY;
	if (by_memory)
		return memory_of(p, c, behind);
	return pace_of(p, c) <= bound && memory_of(p, c, behind) <= p->memory ? c->seconds : INFINITY;
}

/* One first stage, in front of all that is known of the layers behind it. */
static void relax(search *s, uint32_t n, uint32_t first, uint32_t last, uint32_t choice, double value, int by_memory)
{
	uint32_t takes = s->p->takes[choice], code = last * s->p->nchoices + choice, most;
	const extent *behind = &s->extents[(n - 1) * (s->p->nlayers + 1) + last + 1];
	extent *e = &s->extents[n * (s->p->nlayers + 1) + first];
	const double *rest = s->best + (n - 1) * s->slab + (last + 1) * s->row;
	double *best = s->best + n * s->slab + first * s->row;
	uint32_t *from = s->from + n * s->slab + first * s->row;
	if (behind->lo > behind->hi || takes > s->p->units || behind->lo > s->p->units - takes)
		return;
	most = behind->hi > s->p->units - takes ? s->p->units : behind->hi + takes;
	e->lo = behind->lo + takes < e->lo ? behind->lo + takes : e->lo;
	e->hi = most > e->hi ? most : e->hi;
	for (uint32_t d = behind->lo + takes; d <= most; d++) {
		double with = by_memory ? fmax(value, rest[d - takes]) : value + rest[d - takes];

		if (with < best[d]) {
			best[d] = with;
			from[d] = code;
		}
	}
}

/* Tries only the best of choices in a row that take as many ranks: no other can win. */
static void relax_all(search *s, uint32_t n, uint32_t first, uint32_t last, double bound, int by_memory)
{
	const pipeline_problem *p = s->p;
	for (uint32_t c = 0; c < p->nchoices;) {
		double value = INFINITY;
		uint32_t takes = p->takes[c], best = c;

		for (; c < p->nchoices && p->takes[c] == takes; c++) {
			double v = allowed(p, c) ? stage_value(p, cost_of(p, first, last, c), n, bound, by_memory)
			                         : INFINITY;

			if (v < value) {
				value = v;
				best = c;
			}
		}
		if (isfinite(value))
			relax(s, n, first, last, best, value, by_memory);
	}
}

/* The least sum under a bound, and in how many stages; infinite when there is no plan. */
static double least(search *s, double bound, int by_memory, uint32_t *stages)
{
	const pipeline_problem *p = s->p;
	double found = INFINITY;
	for (size_t i = 0; i < (s->most + 1) * s->slab; i++)
		s->best[i] = INFINITY;
	for (size_t i = 0; i < (size_t)(s->most + 1) * (p->nlayers + 1); i++)
		s->extents[i] = (extent){p->units + 1, 0};
	s->best[p->nlayers * s->row] = 0;
	s->extents[p->nlayers] = (extent){0, 0};
	for (uint32_t n = 1; n <= s->most; n++) {
		for (uint32_t first = 0; first < p->nlayers; first++)
			for (uint32_t last = first; last < p->nlayers; last++)
				relax_all(s, n, first, last, bound, by_memory);
		if (s->best[n * s->slab + p->units] < found) {
			found = s->best[n * s->slab + p->units];
			*stages = n;
		}
	}
	return found;
}

/* Reads the plan that least() has found in n stages. */
static void trace(const search *s, uint32_t n, pipeline_plan *out)
{
	uint32_t first = 0, units = s->p->units;
	out->nstages = n;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t code = s->from[(n - i) * s->slab + first * s->row + units];

		out->stages[i] = (pipeline_stage){first, code / s->p->nchoices + 1 - first, code % s->p->nchoices};
		units -= s->p->takes[out->stages[i].choice];
		first += out->stages[i].nlayers;
	}
}

void pipeline_value(const pipeline_problem *p, pipeline_plan *plan)
{
	double sum = 0, pace = 0;
	plan->memory = 0;
	for (uint32_t i = 0; i < plan->nstages; i++) {
		const pipeline_stage *g = &plan->stages[i];
		const pipeline_cost *c = cost_of(p, g->first, g->first + g->nlayers - 1, g->choice);

		sum += c->seconds;
		pace = fmax(pace, pace_of(p, c));
		plan->memory = fmax(plan->memory, memory_of(p, c, plan->nstages - i));
	}
	plan->seconds = sum + pace;
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static gradcomp_status open_search(search *s, const pipeline_problem *p, gradcomp_error *err)
{
	size_t n = (size_t)p->nlayers * p->nlayers * p->nchoices;
	*s = (search){.p = p, .most = p->nlayers < p->units ? p->nlayers : p->units};
	s->row = p->units + 1;
	s->slab = (p->nlayers + 1) * s->row;
	s->best = malloc((s->most + 1) * s->slab * sizeof *s->best);
	s->from = malloc((s->most + 1) * s->slab * sizeof *s->from);
	s->extents = malloc((size_t)(s->most + 1) * (p->nlayers + 1) * sizeof *s->extents);
	s->bounds = malloc((n ? n : 1) * sizeof *s->bounds);
	if (!s->best || !s->from || !s->extents || !s->bounds)
		return error_set(err, GRADCOMP_ERR_NOMEM,
		                 "no memory to plan a pipeline of %u layers on %u units of ranks", p->nlayers,
		                 p->units);
	for (uint32_t first = 0; first < p->nlayers; first++)
		for (uint32_t last = first; last < p->nlayers; last++)
			for (uint32_t c = 0; c < p->nchoices; c++) {
				const pipeline_cost *cost = cost_of(p, first, last, c);

				if (allowed(p, c) && cost->seconds >= 0 && memory_of(p, cost, 1) <= p->memory)
					s->bounds[s->nbounds++] = pace_of(p, cost);
			}
	qsort(s->bounds, s->nbounds, sizeof *s->bounds, ascending);
	return GRADCOMP_OK;
}

/* The sum under one more bound; what is better than `out` replaces it. */
static double try_bound(search *s, uint32_t i, pipeline_plan *out)
{
	pipeline_plan plan;
	uint32_t n = 0;
	double sum = least(s, s->bounds[i], 0, &n);
	if (isfinite(sum)) {
		trace(s, n, &plan);
		pipeline_value(s->p, &plan);
		if (out->seconds < 0 || plan.seconds < out->seconds)
			*out = plan;
	}
	return sum;
}

/* Bounds between lo and hi, whose sums are known. */
static void between(search *s, uint32_t lo, double sum_lo, uint32_t hi, double sum_hi, pipeline_plan *out)
{
	uint32_t middle = lo + (hi - lo) / 2;
	double sum;
	/* Equal sums: lo has the lower bound and the same plan. */
	if (hi - lo < 2 || sum_lo <= sum_hi || s->bounds[lo + 1] + sum_hi >= out->seconds * (1 - s->p->gap))
		return;
	sum = try_bound(s, middle, out);
	between(s, lo, sum_lo, middle, sum, out);
	between(s, middle, sum, hi, sum_hi, out);
}

gradcomp_status pipeline_solve(const pipeline_problem *p, pipeline_plan *out, gradcomp_error *err)
{
	search s;
	gradcomp_status st = open_search(&s, p, err);
	uint32_t n = 0;
	out->nstages = 0;
	out->seconds = out->memory = -1;
	if (!st && s.nbounds) {
		double high = try_bound(&s, s.nbounds - 1, out);

		if (isfinite(high) && s.nbounds > 1)
			between(&s, 0, try_bound(&s, 0, out), s.nbounds - 1, high, out);
	}
	if (!st && out->seconds < 0) {
		double memory = least(&s, INFINITY, 1, &n);

		out->memory = isfinite(memory) ? memory : -1;
	}
	free(s.best);
	free(s.from);
	free(s.extents);
	free(s.bounds);
	return st;
}
