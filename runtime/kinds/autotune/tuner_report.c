/* Writes what auto reports: a line when it has decided, its row of the report, counters. */
#include "kinds/autotune/tuner_internal.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *tuner_reason_text(tuner_reason r)
{
	static const char *const why[] = {
		[TUNER_GOES_ON] = "goes on",
		[TUNER_ALONE] = "one rank has nothing to exchange",
		[TUNER_HIDDEN] = "hidden behind the backward pass",
		[TUNER_NO_GAIN] = "no candidate is predicted to gain the margin",
		[TUNER_TRIES] = "trial",
		[TUNER_WON] = "won its trial",
		[TUNER_LOST] = "no candidate won its trial",
		[TUNER_GUARDS] = "compares with dense",
		[TUNER_STILL_WINS] = "still wins",
		[TUNER_NO_LONGER_WINS] = "does not win any more",
		[TUNER_ERROR] = "too much was held back",
		[TUNER_REFUSED] = "could not be made",
		[TUNER_LOADED] = "loaded",
	};
	return r < TUNER_REASONS ? why[r] : "?";
}

/* Writes "powersgd:rank=4 over ring for 14 of 38 tensors (98 % of the numbers), the rest none". */
static void put_decision(const tuner *c, const partition *p, FILE *f)
{
	for (uint32_t i = 0; i < p->n; i++) {
		const subreducer *q = &p->sub[i];
		const candidate *k = &c->config.candidate[q->candidate];
		double numbers = 0;
		if (i && i + 1 == p->n) {
			fprintf(f, ", the rest %s", k->compressor);
			break;
		}
		for (uint32_t t = 0; t < q->n; t++)
			numbers += (double)c->layout.tensors[c->ntensors - 1 - q->tensor[t]].numel;
		fprintf(f, "%s%s", i ? ", " : "", k->compressor);
		if (k->specs[1]) /* there was memory for it */
			fprintf(f, " over %.*s", (int)strcspn(k->specs[1]->text, ":"), k->specs[1]->text);
		if (p->n > 1)
			fprintf(f, " for %u of %u tensors (%.0f %% of the numbers)", q->n, c->ntensors,
			        100 * numbers / (double)c->layout.numel);
	}
}

/* Prints what the others took, or would have. */
static void put_others(const tuner *c, const decision *v, FILE *f)
{
	const char *before = " (";
	for (uint32_t k = 1; k < c->config.n; k++) {
		double s = v->measured[k] > 0 ? v->measured[k] : v->predicted[k];
		if (k == c->parts.now.candidate || s <= 0 || c->config.candidate[k].unusable ||
		    !(c->config.candidate[k].dense || v->measured[k] > 0))
			continue;
		fprintf(f, "%s%s: %.1f%s", before, c->config.candidate[k].compressor, s * 1e3,
		        v->measured[k] > 0 ? "" : " predicted");
		before = ", ";
	}
	if (*before == ',')
		fputc(')', f);
}

/* A dense candidate stays, since nothing that holds back is faster. */
static void put_dense(const tuner *c, const decision *v, FILE *f)
{
	const uint32_t k = v->candidate;
	const double left = k ? c->choice.policy.left[k] : v->exposed;
	uint32_t best = 0;
	for (uint32_t i = 1; i < c->config.n; i++)
		if (v->predicted[i] > 0 && !c->config.candidate[i].unusable &&
		    (!best || v->predicted[i] < v->predicted[best]))
			best = i;
	fputs(k ? "nothing pays here but a dense one: " : "nothing pays here: ", f);
	put_decision(c, c->parts.partition, f);
	fprintf(f, " leaves %.1f of %.1f ms a step to communication", left * 1e3, v->measured[k] * 1e3);
	if (v->reason == TUNER_HIDDEN)
		fprintf(f, ", less than the margin of %.0f %%", c->config.margin * 100);
	else if (v->reason == TUNER_NO_GAIN && !best)
		fputs("; there is nothing else to try", f);
	else if (v->reason == TUNER_NO_GAIN)
		fprintf(f, "; %s is predicted at %.1f ms a step, which is not worth a trial (margin %.0f %%)",
		        c->config.candidate[best].compressor, v->predicted[best] * 1e3, c->config.margin * 100);
	else if (v->reason == TUNER_LOST)
		fputs("; no trial was faster", f);
	if (k)
		fprintf(f, ", %s takes %.1f", c->config.candidate[0].compressor, v->measured[0] * 1e3);
	if (k || v->reason == TUNER_LOST)
		put_others(c, v, f);
}

void tuner_log(const tuner *c, const decision *v)
{
	char line[480] = "";
	FILE *f;
	if (v->reason == TUNER_GOES_ON || v->reason == TUNER_REFUSED)
		return;
	f = fmemopen(line, sizeof line, "w");
	if (!f)
		return;
	if (v->reason == TUNER_NO_LONGER_WINS || v->reason == TUNER_ERROR)
		fprintf(f, "%s after %s: %s; ", tuner_reason_text((tuner_reason)v->reason),
		        c->choice.nchanges > 1 ? c->choice.change[c->choice.nchanges - 2].to : "compression",
		        v->reason == TUNER_ERROR ? "more than max_error" : "dense steps are as fast");
	if (c->config.candidate[v->candidate].dense && (v->reason == TUNER_HIDDEN || v->reason == TUNER_NO_GAIN ||
	                                                v->reason == TUNER_LOST || v->reason == TUNER_WON)) {
		put_dense(c, v, f);
	} else if (v->candidate || v->reason == TUNER_NO_LONGER_WINS || v->reason == TUNER_ERROR) {
		put_decision(c, c->parts.partition, f);
		if (v->measured[v->candidate] > 0)
			fprintf(f, ": %.1f ms a step", v->measured[v->candidate] * 1e3);
		if (v->candidate)
			fprintf(f, " against %.1f dense", v->measured[0] * 1e3);
		put_others(c, v, f);
	} else {
		fprintf(f, "%s: %s", c->config.candidate[0].compressor, tuner_reason_text((tuner_reason)v->reason));
	}
	fclose(f);
	line[sizeof line - 1] = 0;
	int trial = v->reason == TUNER_TRIES || v->reason == TUNER_GUARDS || v->reason == TUNER_STILL_WINS;
	if (c->job->rank == c->group->ranks[0])
		log_line(&c->job->log, trial ? GRADCOMP_LOG_DEBUG : GRADCOMP_LOG_INFO, "auto: %s%s",
		         v->reason == TUNER_TRIES ? "tries " : "", line);
}

void tuner_note_change(tuner *c, tuner_reason why)
{
	char *text = NULL;
	size_t bytes;
	FILE *f;
	if (c->choice.nchanges == TUNER_SWITCHES)
		return;
	if (!c->choice.change)
		c->choice.change = calloc(TUNER_SWITCHES, sizeof *c->choice.change);
	f = c->choice.change ? open_memstream(&text, &bytes) : NULL;
	if (!f)
		return;
	put_decision(c, c->parts.partition, f);
	fclose(f);
	c->choice.change[c->choice.nchanges++] = (change){c->steps, text, why};
}

int tuner_stats_of_worst(const partition *p, gradcomp_reducer_stats *out)
{
	int found = 0;
	for (uint32_t i = 0; i < p->n && p->sub[i].r; i++) {
		gradcomp_reducer_stats s = {.struct_size = sizeof s};
		p->sub[i].r->base.ops->get_stats(&p->sub[i].r->base, &s);
		if (!s.error_steps || (found && s.error_last <= out->error_last))
			continue;
		*out = s;
		found = 1;
	}
	return found;
}

void tuner_stats_add(gradcomp_reducer_stats *to, const partition *p)
{
	gradcomp_reducer_stats worst;
	uint64_t bad = 0;
	for (uint32_t i = 0; i < p->n && p->sub[i].r; i++) {
		gradcomp_reducer_stats s = {.struct_size = sizeof s};
		p->sub[i].r->base.ops->get_stats(&p->sub[i].r->base, &s);
		to->buckets += s.buckets;
		to->dense_bytes += s.dense_bytes;
		to->wire_bytes += s.wire_bytes;
		to->encode_s += s.encode_s;
		to->exchange_s += s.exchange_s;
		to->decode_s += s.decode_s;
		bad = s.nonfinite_steps > bad ? s.nonfinite_steps : bad;
	}
	to->nonfinite_steps += bad;
	if (!tuner_stats_of_worst(p, &worst))
		return;
	to->error_last = worst.error_last;
	to->error_mean = (to->error_mean * (double)to->error_steps + worst.error_mean * (double)worst.error_steps) /
	                 (double)(to->error_steps + worst.error_steps);
	to->error_steps += worst.error_steps;
}

static gradcomp_reducer_stats all_stats(const tuner *c, const partition *p)
{
	gradcomp_reducer_stats s = c->parts.gone;
	if (c->parts.aside)
		tuner_stats_add(&s, c->parts.aside);
	s.buckets = 0;
	if (p)
		tuner_stats_add(&s, p);
	return s;
}

/* Called with the lock held, while steps go on. */
static void steps_into(gradcomp_reducer_stats *s, const tuner *c)
{
	s->steps = c->steps;
	s->exposed_s = c->timer.exposed_s;
}

/* Parts are not changed while somebody is inside. */
static void enter(tuner *c)
{
	pthread_mutex_lock(&c->lock);
	while (c->turns.busy && !c->failed)
		pthread_cond_wait(&c->turns.changed, &c->lock);
	c->turns.inside++;
	pthread_mutex_unlock(&c->lock);
}

/* Called with the lock held. */
static void leave(tuner *c)
{
	c->turns.inside--;
	pthread_cond_signal(&c->turns.wake);
}

void tuner_stats(gradcomp_reducer *base, gradcomp_reducer_stats *stats)
{
	tuner *c = (tuner *)base;
	uint32_t size = stats->struct_size;
	enter(c);
	gradcomp_reducer_stats full = all_stats(c, c->parts.partition);
	pthread_mutex_lock(&c->lock);
	steps_into(&full, c);
	leave(c);
	pthread_mutex_unlock(&c->lock);
	full.struct_size = size;
	memcpy(stats, &full, size < sizeof full ? size : sizeof full);
}

/* Takes what was done with tensor i out of the rows of the parts. */
static report_tensor take_tensor(const report_reducer *parts, const partition *p, uint32_t i)
{
	report_tensor *t = (report_tensor *)parts[p->of[i]].tensors + p->as[i], taken = *t;
	t->name = t->choice = NULL;
	return taken;
}

/* Makes one row of parts that go on: the first one's row, with the tensors of all. */
static void join_parts(const tuner *c, const partition *p, report_reducer *row)
{
	report_reducer part[TUNER_PARTS] = {0};
	report_tensor *t = calloc(c->ntensors, sizeof *t);
	bool all = t != NULL;
	for (uint32_t i = 0; i < p->n; i++) {
		p->sub[i].r->base.ops->row(&p->sub[i].r->base, &part[i]);
		all &= part[i].tensors != NULL;
	}
	for (uint32_t i = 0; all && i < c->ntensors; i++)
		t[i] = take_tensor(part, p, i);
	*row = part[0];
	row->tensors = all ? t : NULL;
	row->ntensors = all ? c->ntensors : 0;
	part[0] = (report_reducer){.tensors = part[0].tensors, .ntensors = part[0].ntensors};
	for (uint32_t i = 0; i < p->n; i++)
		job_drop_reducer(&part[i]);
	if (!all)
		free(t);
}

void tuner_row(gradcomp_reducer *base, report_reducer *row)
{
	tuner *c = (tuner *)base;
	char *asked = NULL;
	enter(c);
	if (c->parts.partition && c->parts.partition->n)
		join_parts(c, c->parts.partition, row);
	pthread_mutex_lock(&c->lock);
	if (asprintf(&asked, "auto (%s)", c->config.candidate[c->parts.now.candidate].compressor) >= 0) {
		free((char *)row->asked);
		row->asked = asked;
	}
	leave(c);
	pthread_mutex_unlock(&c->lock);
}

void tuner_part_kept(void *ctx, report_reducer *row)
{
	const subreducer *q = ctx;
	tuner *c = q->of;
	c->parts.row[c->parts.nrows++] = *row;
}

void tuner_drop_rows(tuner *c)
{
	while (c->parts.nrows)
		job_drop_reducer(&c->parts.row[--c->parts.nrows]);
}

static report_auto *report_of(const tuner *c)
{
	report_auto *a = calloc(1, sizeof *a);
	size_t bytes;
	FILE *f = a ? open_memstream(&a->decision, &bytes) : NULL;
	if (!f) {
		free(a);
		return NULL;
	}
	put_decision(c, c->parts.partition, f);
	fclose(f);
	a->why = tuner_reason_text((tuner_reason)c->choice.last.reason);
	a->exposed = c->choice.last.exposed;
	a->candidates = calloc(c->config.n, sizeof *a->candidates);
	a->switches = calloc(c->choice.nchanges + 1, sizeof *a->switches);
	for (uint32_t k = 0; a->candidates && k < c->config.n; k++)
		a->candidates[a->ncandidates++] =
			(report_candidate){strdup(c->config.candidate[k].text), c->choice.last.predicted[k],
		                           c->choice.last.measured[k], c->config.candidate[k].unusable};
	for (uint32_t i = 0; a->switches && i < c->choice.nchanges; i++)
		a->switches[a->nswitches++] = (report_switch){c->choice.change[i].step, strdup(c->choice.change[i].to),
		                                              tuner_reason_text(c->choice.change[i].reason)};
	return a;
}

/* Keeps one row for all parts: the first one's, with the counters of all there ever were. */
void tuner_keep_row(tuner *c, const partition *p)
{
	report_tensor *t = calloc(c->ntensors, sizeof *t);
	char *asked;
	if (c->parts.nrows != p->n || !t ||
	    asprintf(&asked, "auto (%s)", c->config.candidate[c->parts.now.candidate].compressor) < 0) {
		free(t);
		tuner_drop_rows(c);
		return;
	}
	for (uint32_t i = 0; i < c->ntensors; i++)
		t[i] = take_tensor(c->parts.row, p, i);
	report_reducer row = c->parts.row[0];
	c->parts.row[0] = (report_reducer){.asked = row.asked, .tensors = row.tensors, .ntensors = row.ntensors};
	uint32_t buckets = c->parts.gone.buckets;
	row.asked = asked;
	row.tensors = t;
	row.ntensors = c->ntensors;
	row.stats = all_stats(c, NULL);
	steps_into(&row.stats, c);
	row.stats.buckets = buckets;
	row.tuner = report_of(c);
	if (c->base.report)
		c->base.report(c->base.report_ctx, &row);
	else
		job_keep_reducer(c->job, &row);
	tuner_drop_rows(c);
}
