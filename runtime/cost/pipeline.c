#include "cost/pipeline.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

/* Where a row of best[] is finite: from lo to hi; lo above hi: nowhere. */
typedef struct extent {
	uint32_t lo, hi;
} extent;

/* These are in picks[] beside choices. */
enum { PICK_NONE = UINT32_MAX - 1, PICK_UNKNOWN = UINT32_MAX };

/* best[s][k][d]: of layers k and up on d units in s stages. Choices in a row that take as many ranks are a run, of
 * which a stage can only want one: picks[span][run]. */
typedef struct search {
	const pipeline_problem *p;
	uint32_t most;    /* stages */
	size_t row, slab; /* sizes in `best`: of d, and of k with d */
	extent *extents;  /* one for each [s][k] */
	double *best;
	uint32_t nruns, *runs; /* where each begins, and the end of the last one */
	uint32_t *picks;       /* for the bound that is tried */
	double *bounds;        /* every value that the maximum can have, ascending */
	uint32_t nbounds;
} search;

/* Layers first to last, in `costs` and in `picks`. */
static size_t span_of(const pipeline_problem *p, uint32_t first, uint32_t last)
{
	return (size_t)first * p->nlayers + last;
}

static const pipeline_cost *cost_of(const pipeline_problem *p, uint32_t first, uint32_t last, uint32_t choice)
{
	return &p->costs[span_of(p, first, last) * p->nchoices + choice];
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

/* Returns the first of the quickest choices of a run that are within the bound and have the memory. */
static uint32_t quickest(const search *s, size_t span, uint32_t run, uint32_t behind, double bound)
{
	const pipeline_problem *p = s->p;
	const pipeline_cost *of = &p->costs[span * p->nchoices];
	uint32_t found = PICK_NONE;
	for (uint32_t c = s->runs[run]; c < s->runs[run + 1]; c++)
		if (of[c].seconds >= 0 && (found == PICK_NONE || of[c].seconds < of[found].seconds) &&
		    pace_of(p, &of[c]) <= bound && memory_of(p, &of[c], behind) <= p->memory)
			found = c;
	return found;
}

/* Returns the same, asked for more and more stages behind: memory only grows, so what was the quickest stays it as long
 * as it has the memory. */
static uint32_t pick(search *s, size_t span, uint32_t run, uint32_t behind, double bound)
{
	const pipeline_problem *p = s->p;
	uint32_t *known = &s->picks[span * s->nruns + run];
	if (*known == PICK_UNKNOWN ||
	    (*known != PICK_NONE && memory_of(p, &p->costs[span * p->nchoices + *known], behind) > p->memory))
		*known = quickest(s, span, run, behind, bound);
	return *known;
}

/* Returns the least memory that a choice of a run needs; infinite: none is possible. */
static double least_memory(const search *s, size_t span, uint32_t run, uint32_t behind)
{
	const pipeline_cost *of = &s->p->costs[span * s->p->nchoices];
	double least = INFINITY;
	for (uint32_t c = s->runs[run]; c < s->runs[run + 1]; c++)
		if (of[c].seconds >= 0)
			least = fmin(least, memory_of(s->p, &of[c], behind));
	return least;
}

/* One first stage, on so many units, in front of all that is known of the layers behind it. */
static void relax(search *s, uint32_t n, uint32_t first, uint32_t last, uint32_t takes, double value, int by_memory)
{
	const uint32_t units = s->p->units;
	const extent *behind = &s->extents[(n - 1) * (s->p->nlayers + 1) + last + 1];
	extent *e = &s->extents[n * (s->p->nlayers + 1) + first];
	const double *rest = s->best + (n - 1) * s->slab + (last + 1) * s->row;
	double *best = s->best + n * s->slab + first * s->row;
	uint32_t least, most;
	if (takes > units || behind->lo > units - takes)
		return;
	least = behind->lo + takes;
	most = behind->hi > units - takes ? units : behind->hi + takes;
	e->lo = least < e->lo ? least : e->lo;
	e->hi = most > e->hi ? most : e->hi;
	for (uint32_t d = least; d <= most; d++) {
		double with = by_memory ? fmax(value, rest[d - takes]) : value + rest[d - takes];

		best[d] = with < best[d] ? with : best[d];
	}
}

/* Tries only the best choice of each run: no other can win. */
static void relax_all(search *s, uint32_t n, uint32_t first, uint32_t last, double bound, int by_memory)
{
	const pipeline_problem *p = s->p;
	const extent *behind = &s->extents[(n - 1) * (p->nlayers + 1) + last + 1];
	const size_t span = span_of(p, first, last);
	if (behind->lo > behind->hi)
		return;
	for (uint32_t run = 0; run < s->nruns; run++) {
		const uint32_t takes = p->takes[s->runs[run]], c = by_memory ? PICK_NONE : pick(s, span, run, n, bound);
		const double value = by_memory        ? least_memory(s, span, run, n)
		                     : c == PICK_NONE ? INFINITY
		                                      : p->costs[span * p->nchoices + c].seconds;

		if (isfinite(value))
			relax(s, n, first, last, takes, value, by_memory);
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
	for (size_t i = 0; i < span_of(p, p->nlayers, 0) * s->nruns; i++)
		s->picks[i] = PICK_UNKNOWN;
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

/* Returns the first stage of n on all these units, as least() has chosen it. */
static pipeline_stage stage_at(const search *s, uint32_t n, uint32_t first, uint32_t units, double bound)
{
	const pipeline_problem *p = s->p;
	pipeline_stage found = {.first = first};
	double sum = INFINITY;
	for (uint32_t last = first; last < p->nlayers; last++) {
		const double *rest = s->best + (n - 1) * s->slab + (last + 1) * s->row;

		for (uint32_t run = 0; run < s->nruns; run++) {
			const uint32_t takes = p->takes[s->runs[run]];
			uint32_t c;

			if (takes > units || !(rest[units - takes] < sum))
				continue;
			c = quickest(s, span_of(p, first, last), run, n, bound);
			if (c != PICK_NONE && cost_of(p, first, last, c)->seconds + rest[units - takes] < sum) {
				sum = cost_of(p, first, last, c)->seconds + rest[units - takes];
				found = (pipeline_stage){first, last + 1 - first, c};
			}
		}
	}
	return found;
}

/* Reads the plan that least() has found in n stages. */
static void trace(const search *s, uint32_t n, double bound, pipeline_plan *out)
{
	uint32_t first = 0, units = s->p->units;
	out->nstages = n;
	for (uint32_t i = 0; i < n; i++) {
		out->stages[i] = stage_at(s, n - i, first, units, bound);
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

static void find_runs(search *s)
{
	const pipeline_problem *p = s->p;
	for (uint32_t c = 0; c < p->nchoices; c++)
		if (!c || p->takes[c] != p->takes[c - 1])
			s->runs[s->nruns++] = c;
	s->runs[s->nruns] = p->nchoices;
}

static gradcomp_status open_search(search *s, const pipeline_problem *p, gradcomp_error *err)
{
	size_t n = (size_t)p->nlayers * p->nlayers * p->nchoices;
	*s = (search){.p = p, .most = p->nlayers < p->units ? p->nlayers : p->units};
	s->row = p->units + 1;
	s->slab = (p->nlayers + 1) * s->row;
	s->best = malloc((s->most + 1) * s->slab * sizeof *s->best);
	s->extents = malloc((size_t)(s->most + 1) * (p->nlayers + 1) * sizeof *s->extents);
	s->runs = malloc((p->nchoices + 1) * sizeof *s->runs);
	s->picks = malloc((n ? n : 1) * sizeof *s->picks);
	s->bounds = malloc((n ? n : 1) * sizeof *s->bounds);
	if (!s->best || !s->extents || !s->runs || !s->picks || !s->bounds)
		return error_set(err, GRADCOMP_ERR_NOMEM,
		                 "no memory to plan a pipeline of %u layers on %u units of ranks", p->nlayers,
		                 p->units);
	find_runs(s);
	for (uint32_t first = 0; first < p->nlayers; first++)
		for (uint32_t last = first; last < p->nlayers; last++)
			for (uint32_t c = 0; c < p->nchoices; c++) {
				const pipeline_cost *cost = cost_of(p, first, last, c);

				if (cost->seconds >= 0 && memory_of(p, cost, 1) <= p->memory)
					s->bounds[s->nbounds++] = pace_of(p, cost);
			}
	qsort(s->bounds, s->nbounds, sizeof *s->bounds, ascending);
	return GRADCOMP_OK;
}

/* A bound has come to a least sum, and to a maximum of its plan. */
typedef struct tried {
	uint32_t bound;
	double sum, pace;
} tried;

static double longest(const pipeline_problem *p, const pipeline_plan *plan)
{
	double pace = 0;
	for (uint32_t i = 0; i < plan->nstages; i++) {
		const pipeline_stage *g = &plan->stages[i];

		pace = fmax(pace, pace_of(p, cost_of(p, g->first, g->first + g->nlayers - 1, g->choice)));
	}
	return pace;
}

/* Tries one more bound; what is better than `out` replaces it. */
static tried try_bound(search *s, uint32_t i, pipeline_plan *out)
{
	pipeline_plan plan;
	uint32_t n = 0;
	tried t = {i, least(s, s->bounds[i], 0, &n), INFINITY};
	if (isfinite(t.sum)) {
		trace(s, n, s->bounds[i], &plan);
		pipeline_value(s->p, &plan);
		t.pace = longest(s->p, &plan);
		if (out->seconds < 0 || plan.seconds < out->seconds)
			*out = plan;
	}
	return t;
}

/* Tries bounds between lo and hi. */
static void between(search *s, tried lo, tried hi, pipeline_plan *out)
{
	tried middle = {.bound = lo.bound + (hi.bound - lo.bound) / 2, .sum = hi.sum, .pace = hi.pace};
	/* Equal sums: lo has the lower bound and the same plan. */
	if (hi.bound - lo.bound < 2 || lo.sum <= hi.sum ||
	    s->bounds[lo.bound + 1] + hi.sum >= out->seconds * (1 - s->p->gap))
		return;
	/* The plan of hi is within the bound, too: then it is the answer here, since there are no more plans than at hi. */
	if (s->bounds[middle.bound] < hi.pace)
		middle = try_bound(s, middle.bound, out);
	between(s, lo, middle, out);
	between(s, middle, hi, out);
}

/* Returns true when no plan whose sum is at least this can be quicker than is asked for: its longest stage takes at
 * least as long as the mean one. */
static bool is_hopeless(const search *s, double sum)
{
	const pipeline_problem *p = s->p;
	const double pace = ((p->microbatches - 1.0) * sum + p->once) / s->most;
	return p->below > 0 && (sum + fmax(pace, s->bounds[0])) * (1 - 1e-9) >= p->below;
}

gradcomp_status pipeline_solve(const pipeline_problem *p, pipeline_plan *out, gradcomp_error *err)
{
	search s;
	gradcomp_status st = open_search(&s, p, err);
	uint32_t n = 0;
	out->nstages = 0;
	out->seconds = out->memory = -1;
	if (!st && s.nbounds) {
		const tried high = try_bound(&s, s.nbounds - 1, out);

		if (isfinite(high.sum) && s.nbounds > 1 && !is_hopeless(&s, high.sum))
			between(&s, try_bound(&s, 0, out), high, out);
	}
	if (!st && out->seconds < 0 && !(p->below > 0)) {
		double memory = least(&s, INFINITY, 1, &n);

		out->memory = isfinite(memory) ? memory : -1;
	}
	free(s.best);
	free(s.extents);
	free(s.runs);
	free(s.picks);
	free(s.bounds);
	return st;
}
