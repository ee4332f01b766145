/* Writes what the report and the log say of a reducer's schedule. */
#include "reducer/bucketing/replan_internal.h"

#include "reducer/bucketing/profile_internal.h"

#include "base/fit.h"
#include "reducer/bucketing/measure.h"

#include <stdlib.h>
#include <string.h>
#include <stdio.h>

/* Returns the seconds of the median step under the plan in force. */
static double step_seconds(const reducer *r)
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
	static const char *const names[] = {[SCHEDULE_WFBP] = "wfbp",
	                                    [SCHEDULE_SINGLE] = "single",
	                                    [SCHEDULE_FIXED] = "fixed",
	                                    [SCHEDULE_PLAN] = "plan"};
	if (q->loaded)
		return "saved";
	if (!q->measures)
		return q->asked.spec.method <= SCHEDULE_PLAN ? names[q->asked.spec.method] : "fixed";
	return q->plans ? q->name : "fixed";
}

report_schedule *replan_report(const reducer *r)
{
	const struct replan *q = r->replan;
	const plan_msg *v = &q->last;
	report_schedule *s = calloc(1, sizeof *s);
	if (!s)
		return NULL;
	*s = (report_schedule){.asked = strdup(q->asked.spec.text),
	                       .plan = strdup(name(q)),
	                       .fallback = *q->reason ? strdup(q->reason) : NULL,
	                       .buckets = calloc(r->eng.list.nbuckets, sizeof *s->buckets),
	                       .lag = r->schedule.lag,
	                       .plans = q->plans,
	                       .measured = q->known,
	                       .exchange_a = v->exchange.a,
	                       .exchange_b = v->exchange.b,
	                       .encode_a = v->encode.a,
	                       .encode_b = v->encode.b,
	                       .decode_a = v->decode.a,
	                       .decode_b = v->decode.b,
	                       .predicted = v->plan.predicted,
	                       .predicted_exposed = v->exposed,
	                       .fixed = v->fixed,
	                       .step = step_seconds(r)};
	for (uint32_t b = 0; s->buckets && b < r->eng.list.nbuckets; b++)
		s->buckets[s->nbuckets++] = (report_bucket){.tensors = r->eng.list.buckets[b].pub.ntensors,
		                                            .numel = r->eng.list.buckets[b].pub.numel,
		                                            .position = r->schedule.bucket[b].position};
	return s;
}

void replan_log_fixed(const reducer *r)
{
	const struct replan *q = r->replan;
	log_line(&r->eng.job->log, GRADCOMP_LOG_INFO, "schedule: %s: %s; fixed buckets instead, %u message%s a step",
	         q->asked.spec.text, q->reason, r->eng.list.nbuckets, r->eng.list.nbuckets == 1 ? "" : "s");
}

/* "; rank 3 on n2 takes 2.4 times as long as rank 0 for a step's passes", or nothing. */
static const char *uneven(const reducer *r, const fit *f, char *out, size_t capacity)
{
	const int *ranks = r->eng.group->ranks;
	*out = 0;
	if (f->slowest_s > 2 * f->fastest_s && f->fastest_s > 0 && f->slowest < r->eng.layout.nranks &&
	    f->fastest < r->eng.layout.nranks)
		snprintf(out, capacity, "; rank %d on %s takes %.1f times as long as rank %d for a step's passes",
		         ranks[f->slowest], transport_host(r->eng.job->transport, ranks[f->slowest]),
		         f->slowest_s / f->fastest_s, ranks[f->fastest]);
	return out;
}

void replan_log(const reducer *r, const fit *f)
{
	const struct replan *q = r->replan;
	const plan_msg *v = &q->last;
	char more[256];
	log_line(
		&r->eng.job->log, GRADCOMP_LOG_INFO,
		"schedule: %s%s%s%s: %u tensor%s in %u message%s; a message costs %.0f us + %.3g ns a byte, predicted %.1f ms "
		"a step (fixed: %.1f ms)%s",
		q->asked.spec.text, strcmp(q->asked.spec.text, q->name) ? " (" : "",
		strcmp(q->asked.spec.text, q->name) ? q->name : "", strcmp(q->asked.spec.text, q->name) ? ")" : "",
		r->eng.layout.ntensors, r->eng.layout.ntensors == 1 ? "" : "s", r->eng.list.nbuckets,
		r->eng.list.nbuckets == 1 ? "" : "s", v->exchange.a * 1e6, v->exchange.b * 1e9, v->plan.predicted * 1e3,
		v->fixed * 1e3, uneven(r, f, more, sizeof more));
}
