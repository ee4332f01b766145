/* The lines of the log that say what came of measuring. */
#include "replan_parts.h"

#include "measure.h"

#include <stdio.h>
#include <string.h>

void replan_say_fixed(const gradcomp_reducer *r)
{
	const struct replan *q = r->replan;
	log_line(&r->job->log, GRADCOMP_LOG_INFO, "schedule: %s: %s; fixed buckets instead, %u message%s a step",
	         q->spec.text, q->reason, r->nbuckets, r->nbuckets == 1 ? "" : "s");
}

/* "; rank 3 on n2 takes 2.4 times as long as rank 0 for a step's passes", or nothing. */
static const char *uneven(const gradcomp_reducer *r, const fit *f, char *out, size_t capacity)
{
	const int *ranks = r->group->ranks;
	*out = 0;
	if (f->slowest_s > 2 * f->fastest_s && f->fastest_s > 0 && f->slowest < r->layout.nranks &&
	    f->fastest < r->layout.nranks)
		snprintf(out, capacity, "; rank %d on %s takes %.1f times as long as rank %d for a step's passes",
		         ranks[f->slowest], transport_host(r->job->transport, ranks[f->slowest]),
		         f->slowest_s / f->fastest_s, ranks[f->fastest]);
	return out;
}

void replan_say(const gradcomp_reducer *r, const fit *f)
{
	const struct replan *q = r->replan;
	const verdict *v = &q->last;
	char more[256];
	log_line(&r->job->log, GRADCOMP_LOG_INFO,
	         "schedule: %s%s%s%s: %u tensor%s in %u message%s; a message costs %.0f us + %.3g ns a byte, predicted %.1f ms "
	         "a step (fixed: %.1f ms)%s",
	         q->spec.text, strcmp(q->spec.text, q->name) ? " (" : "", strcmp(q->spec.text, q->name) ? q->name : "",
	         strcmp(q->spec.text, q->name) ? ")" : "", r->layout.ntensors, r->layout.ntensors == 1 ? "" : "s",
	         r->nbuckets, r->nbuckets == 1 ? "" : "s", v->exchange.a * 1e6, v->exchange.b * 1e9,
	         v->plan.predicted * 1e3, v->fixed * 1e3, uneven(r, f, more, sizeof more));
}
