/* Measures on each rank, and combines at a check: one all-reduce of doubles, the same number on all of them. */
#include "kinds/autotune/tuner.h"

#include "base/error.h"
#include "base/fit.h"
#include "kinds/autotune/tuner_internal.h"

#include <stdlib.h>
#include <string.h>

enum { COSTS = 4 };

gradcomp_status metrics_make(metrics *f, uint32_t n, uint32_t ncandidates, gradcomp_error *err)
{
	double *at;
	*f = (metrics){.ntensors = n,
	               .ncandidates = ncandidates,
	               .count = 2 * TUNER_WINDOW + 7 + n + (COSTS + 1) * ncandidates};
	f->value = at = calloc(f->count, sizeof *f->value);
	if (!at)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for what is measured of %u tensors", n);
	f->exposed = at, at += TUNER_WINDOW;
	f->line = at, at += 2;
	f->fitted = at, at += 2;
	f->costed = at++;
	/* Up to here the ranks' minimum. */
	f->took = at, at += TUNER_WINDOW;
	f->error = at++;
	f->forward = at++;
	f->backward = at, at += n;
	f->cost = at, at += COSTS * (size_t)ncandidates;
	f->unusable = at;
	return GRADCOMP_OK;
}

void metrics_free(metrics *f)
{
	free(f->value);
}

uint32_t metrics_steps(const tuner *c)
{
	uint64_t n = c->steps - c->parts.changed_at;
	/* The base has been connected before its first step. */
	if (n == 1 && !c->choice.nchanges)
		return 1;
	return n <= 1 ? 0 : n - 1 > TUNER_WINDOW ? TUNER_WINDOW : (uint32_t)n - 1;
}

/* The exchange's line: of steps where there are some, else as it was probed. */
static linear exchange_line(const tuner *c)
{
	reducer *r = c->parts.partition->sub[0].r;
	pthread_mutex_lock(&r->lock);
	run_step_replan_settle(r); /* a replanning round changes the summary */
	pthread_mutex_unlock(&r->lock);
	const profile_summary *s = profile_get(r);
	return s->steps > 1 && c->steps > 1 && s->exchange.b > 0 ? s->exchange : c->network.probed;
}

void metrics_fill(tuner *c)
{
	metrics *f = &c->choice.metrics;
	const step_timer *p = &c->timer;
	linear line = exchange_line(c);
	memset(f->value, 0, f->count * sizeof *f->value);
	for (uint32_t k = 1, n = metrics_steps(c); k <= n; k++) {
		f->took[TUNER_WINDOW - k] = p->took[(c->steps - k) % TUNER_WINDOW];
		f->exposed[TUNER_WINDOW - k] = p->exposed[(c->steps - k) % TUNER_WINDOW];
	}
	f->line[0] = line.a;
	f->line[1] = line.b;
	f->fitted[0] = c->network.fitted.a;
	f->fitted[1] = c->network.fitted.b;
	*f->error = c->steps > c->parts.changed_at ? p->error : 0;
	*f->forward = p->forward;
	memcpy(f->backward, p->backward, c->ntensors * sizeof *f->backward);
	*f->costed = 1;
	for (uint32_t k = 0; k < c->config.n; k++) {
		const candidate *of = &c->config.candidate[k];
		if (!of->costed && !of->unusable)
			*f->costed = 0;
		const double cost[COSTS] = {of->cost.encode.a, of->cost.encode.b, of->cost.decode.a, of->cost.decode.b};
		memcpy(f->cost + (size_t)k * COSTS, cost, sizeof cost);
		/* The largest is of the first rank that found it out, which logs it. */
		f->unusable[k] = of->unusable ? c->group->nranks - c->group->me : 0;
	}
}

gradcomp_status metrics_share(tuner *c, gradcomp_error *err)
{
	metrics *f = &c->choice.metrics;
	size_t smallest = (size_t)(f->took - f->value);
	for (size_t i = 0; i < smallest; i++)
		f->value[i] = -f->value[i];
	gradcomp_status st = group_allreduce(c->group, f->value, f->count, GRADCOMP_F64, GRADCOMP_MAX, err);
	for (size_t i = 0; i < smallest; i++)
		f->value[i] = -f->value[i];
	for (uint32_t k = 0; !st && k < c->config.n; k++) {
		candidate *of = &c->config.candidate[k];
		const double *cost = f->cost + (size_t)k * COSTS;
		of->unusable = f->unusable[k] > 0;
		if (of->why && (int)f->unusable[k] == c->group->nranks - c->group->me)
			log_line(&c->job->log, c->job->rank ? GRADCOMP_LOG_WARN : GRADCOMP_LOG_INFO,
			         "auto: '%s' is left out: %s", of->text, of->why);
		free(of->why);
		of->why = NULL;
		of->cost.encode = (linear){cost[0], cost[1]};
		of->cost.decode = (linear){cost[2], cost[3]};
	}
	return st;
}

double metrics_median(const double *window, uint32_t n)
{
	double sorted[TUNER_WINDOW];
	memcpy(sorted, window + TUNER_WINDOW - n, n * sizeof *sorted);
	return fit_median(sorted, n);
}

/* The functions below time the steps of this rank. */

/* The latest step weighs so much in a smoothed value. */
#define LATEST 0.3

gradcomp_status metrics_timer_make(step_timer *p, uint32_t n, gradcomp_error *err)
{
	p->given = calloc(n, sizeof *p->given);
	p->backward = calloc(n, sizeof *p->backward);
	return p->given && p->backward ? GRADCOMP_OK
	                               : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the times of %u tensors", n);
}

void metrics_timer_free(step_timer *p)
{
	free(p->given);
	free(p->backward);
}

void metrics_timer_given(tuner *c, uint32_t i)
{
	step_timer *p = &c->timer;
	double now = clock_now();
	p->given[c->ntensors - 1 - i] = now;
	if (c->step.ngiven == 1)
		p->first_given = now;
	p->last_given = now;
}

static void smooth(double *value, double latest, int first)
{
	*value = first ? latest : *value + LATEST * (latest - *value);
}

void metrics_timer_take(tuner *c, const step_times *t)
{
	step_timer *p = &c->timer;
	int first = t->step < 2; /* the first step has no beginning, and it connects */
	p->took[t->step % TUNER_WINDOW] = t->end - (t->connected ? t->since : t->first);
	p->exposed[t->step % TUNER_WINDOW] = t->end - t->last;
	p->exposed_s += t->end - t->last;
	/* Gradients that come out of order take no time but that of the latest. */
	for (uint32_t i = 0, last = 0; i < c->ntensors; i++) {
		double took = t->made[i] - t->made[last];
		smooth(&p->backward[i], took > 0 ? took : 0, first);
		last = took > 0 ? i : last;
	}
	if (t->connected)
		smooth(&p->forward, t->first - t->since, first);
}

void metrics_timer_step(tuner *c)
{
	step_timer *p = &c->timer;
	double now = clock_now();
	gradcomp_reducer_stats s;
	if (!c->gpu)
		metrics_timer_take(c, &(step_times){c->steps, c->steps > 0, p->given, p->last_end, p->first_given,
		                                    p->last_given, now});
	if (!c->config.candidate[c->parts.now.candidate].dense && tuner_stats_of_worst(c->parts.partition, &s))
		smooth(&p->error, s.error_last, c->steps == c->parts.changed_at);
	p->last_end = now;
}
