/* What steps take on this rank, as the front sees them. */
#include "choice_parts.h"

#include "error.h"

#include <stdlib.h>

/* Of a smoothed value: what the latest step weighs. */
#define LATEST 0.3

gradcomp_status pulse_make(pulse *p, uint32_t n, gradcomp_error *err)
{
	p->given = calloc(n, sizeof *p->given);
	p->backward = calloc(n, sizeof *p->backward);
	return p->given && p->backward
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the times of %u tensors", n);
}

void pulse_free(pulse *p)
{
	free(p->given);
	free(p->backward);
}

void pulse_given(choice *c, uint32_t i)
{
	pulse *p = &c->pulse;
	double now = clock_now();
	p->given[c->ntensors - 1 - i] = now;
	if (c->ngiven == 1)
		p->first_given = now;
	p->last_given = now;
}

static void smooth(double *value, double latest, int first)
{
	*value = first ? latest : *value + LATEST * (latest - *value);
}

void pulse_step(choice *c)
{
	pulse *p = &c->pulse;
	double now = clock_now();
	int first = c->steps < 2; /* of the first step there is no beginning, and it connects */
	p->took[c->steps % CHOICE_WINDOW] = now - (c->steps ? p->last_end : p->first_given);
	p->exposed[c->steps % CHOICE_WINDOW] = now - p->last_given;
	p->exposed_s += now - p->last_given;
	/* Gradients that come out of order take no time but that of the latest. */
	for (uint32_t i = 0, last = 0; i < c->ntensors; i++) {
		double took = p->given[i] - p->given[last];
		smooth(&p->backward[i], took > 0 ? took : 0, first);
		last = took > 0 ? i : last;
	}
	if (c->steps)
		smooth(&p->forward, p->first_given - p->last_end, first);
	gradcomp_reducer_stats s;
	if (!c->wish.candidate[c->now.candidate].dense && stats_of_worst(c->parts, &s))
		smooth(&p->error, s.error_last, c->steps == c->changed_at);
	p->last_end = now;
}
