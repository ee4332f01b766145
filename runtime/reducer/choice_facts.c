/* What the ranks show each other at a check: one all-reduce of doubles, the same number on
 * all of them. */
#include "choice.h"

#include "error.h"
#include "fit.h"

#include <stdlib.h>
#include <string.h>

enum { COSTS = 4 };

gradcomp_status facts_make(facts *f, uint32_t n, uint32_t ncandidates, gradcomp_error *err)
{
	double *at;
	*f = (facts){.ntensors = n, .ncandidates = ncandidates,
	             .count = 2 * CHOICE_WINDOW + 5 + n + (COSTS + 1) * ncandidates};
	f->value = at = calloc(f->count, sizeof *f->value);
	if (!at)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what is measured of %u tensors", n);
	f->exposed = at, at += CHOICE_WINDOW;
	f->line = at, at += 2;
	f->costed = at++;
	/* Up to here the ranks' minimum. */
	f->took = at, at += CHOICE_WINDOW;
	f->error = at++;
	f->forward = at++;
	f->backward = at, at += n;
	f->cost = at, at += COSTS * (size_t)ncandidates;
	f->unusable = at;
	return GRADCOMP_OK;
}

void facts_free(facts *f)
{
	free(f->value);
}

uint32_t facts_steps(const choice *c)
{
	uint64_t n = c->steps - c->changed_at;
	/* The base has been connected before its first step. */
	if (n == 1 && !c->nchanges)
		return 1;
	return n <= 1 ? 0 : n - 1 > CHOICE_WINDOW ? CHOICE_WINDOW : (uint32_t)n - 1;
}

/* The exchange's line: of steps where there are some, else as it was probed. */
static gradcomp_line exchange_line(const choice *c)
{
	gradcomp_reducer *r = c->parts->part[0].r;
	pthread_mutex_lock(&r->lock);
	queue_settle(r); /* who talk about a plan change the summary */
	pthread_mutex_unlock(&r->lock);
	const profile_summary *s = profile_get(r);
	return s->steps > 1 && c->steps > 1 && s->exchange.b > 0 ? s->exchange : c->probed;
}

void facts_fill(choice *c)
{
	facts *f = &c->facts;
	const pulse *p = &c->pulse;
	gradcomp_line line = exchange_line(c);
	memset(f->value, 0, f->count * sizeof *f->value);
	for (uint32_t k = 1, n = facts_steps(c); k <= n; k++) {
		f->took[CHOICE_WINDOW - k] = p->took[(c->steps - k) % CHOICE_WINDOW];
		f->exposed[CHOICE_WINDOW - k] = p->exposed[(c->steps - k) % CHOICE_WINDOW];
	}
	f->line[0] = line.a;
	f->line[1] = line.b;
	*f->error = c->steps > c->changed_at ? p->error : 0;
	*f->forward = p->forward;
	memcpy(f->backward, p->backward, c->ntensors * sizeof *f->backward);
	*f->costed = 1;
	for (uint32_t k = 0; k < c->wish.n; k++) {
		const candidate *of = &c->wish.candidate[k];
		if (!of->costed && !of->unusable)
			*f->costed = 0;
		const double cost[COSTS] = {of->cost.encode.a, of->cost.encode.b, of->cost.decode.a,
		                            of->cost.decode.b};
		memcpy(f->cost + (size_t)k * COSTS, cost, sizeof cost);
		/* The largest is of the first rank that found it out, which tells. */
		f->unusable[k] = of->unusable ? c->group->nranks - c->group->me : 0;
	}
}

gradcomp_status facts_share(choice *c, gradcomp_error *err)
{
	facts *f = &c->facts;
	size_t smallest = (size_t)(f->took - f->value);
	for (size_t i = 0; i < smallest; i++)
		f->value[i] = -f->value[i];
	gradcomp_status st = gradcomp_allreduce(c->group, f->value, f->count, GRADCOMP_F64, GRADCOMP_MAX, err);
	for (size_t i = 0; i < smallest; i++)
		f->value[i] = -f->value[i];
	for (uint32_t k = 0; !st && k < c->wish.n; k++) {
		candidate *of = &c->wish.candidate[k];
		const double *cost = f->cost + (size_t)k * COSTS;
		of->unusable = f->unusable[k] > 0;
		if (of->why && (int)f->unusable[k] == c->group->nranks - c->group->me)
			log_line(&c->job->log, c->job->rank ? GRADCOMP_LOG_WARN : GRADCOMP_LOG_INFO, "auto: '%s' is left out: %s",
			         of->text, of->why);
		free(of->why);
		of->why = NULL;
		of->cost.encode = (gradcomp_line){cost[0], cost[1]};
		of->cost.decode = (gradcomp_line){cost[2], cost[3]};
	}
	return st;
}

double facts_median(const double *window, uint32_t n)
{
	double sorted[CHOICE_WINDOW];
	memcpy(sorted, window + CHOICE_WINDOW - n, n * sizeof *sorted);
	return fit_median(sorted, n);
}
