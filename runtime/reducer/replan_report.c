/* What the report keeps of a reducer's schedule. */
#include "replan_parts.h"

#include "profile_rows.h"

#include "fit.h"

#include <stdlib.h>
#include <string.h>

/* The median step under the plan in force. */
static double step_seconds(const gradcomp_reducer *r)
{
	const profile *p = r->profile;
	uint64_t from = profile_oldest(p) > r->replan->from ? profile_oldest(p) : r->replan->from;
	double *v = calloc(p->kept + 1, sizeof *v), median = 0;
	size_t n = 0;
	for (uint64_t at = from; v && at < p->at; at++)
		if (!profile_row_of(p, at)->dropped)
			v[n++] = profile_row_of(p, at)->step;
	if (n)
		median = fit_median(v, n);
	free(v);
	return median;
}

static const char *name(const struct replan *q)
{
	static const char *const names[] = {[SCHEDULE_WFBP] = "wfbp", [SCHEDULE_SINGLE] = "single",
	                                    [SCHEDULE_FIXED] = "fixed", [SCHEDULE_PLAN] = "plan"};
	if (q->loaded)
		return "saved";
	if (!q->measures)
		return q->spec.method <= SCHEDULE_PLAN ? names[q->spec.method] : "fixed";
	return q->plans ? q->name : "fixed";
}

report_schedule *replan_report(const gradcomp_reducer *r)
{
	const struct replan *q = r->replan;
	const verdict *v = &q->last;
	report_schedule *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	*s = (report_schedule){.asked = strdup(q->spec.text), .plan = strdup(name(q)),
	                       .fallback = *q->reason ? strdup(q->reason) : NULL,
	                       .buckets = calloc(r->nbuckets, sizeof *s->buckets), .lag = r->schedule.lag,
	                       .plans = q->plans, .measured = q->known, .exchange_a = v->exchange.a,
	                       .exchange_b = v->exchange.b, .encode_a = v->encode.a, .encode_b = v->encode.b,
	                       .decode_a = v->decode.a, .decode_b = v->decode.b, .predicted = v->plan.predicted,
	                       .predicted_exposed = v->exposed, .fixed = v->fixed, .step = step_seconds(r)};
	for (uint32_t b = 0; s->buckets && b < r->nbuckets; b++)
		s->buckets[s->nbuckets++] = (report_bucket){.tensors = r->buckets[b].pub.ntensors,
		                                            .numel = r->buckets[b].pub.numel,
		                                            .place = r->schedule.bucket[b].place};
	return s;
}
