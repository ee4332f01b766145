/* What is asked of a reducer's schedule, and the plan of its first step. */
#include "reducer/bucketing/replan_internal.h"

#include "reducer/bucketing/bucketing.h"
#include "schedule/plan_file.h"
#include "reducer/bucketing/plan_solve.h"
#include "reducer/word_sync.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Without a schedule of its own and with bytes of its own a reducer has fixed buckets. */
static gradcomp_status parse(const gradcomp_reducer *r, const char *spec, uint64_t bucket_bytes, schedule_spec *out,
                             gradcomp_error *err)
{
	gradcomp_error inner;
	const char *text = spec ? spec : bucket_bytes ? "fixed" : config_str(r->job->config, "gradcomp.schedule");
	gradcomp_status st = schedule_spec_parse(text, out, &inner);
	if (st)
		return error_set(err, st, "schedule: %s", inner.text);
	if (bucket_bytes && (out->method != SCHEDULE_FIXED || out->bytes)) {
		st = error_set(err, GRADCOMP_ERR_INVALID,
		               "schedule '%s' and the option bucket_bytes=%llu: give one of them", text,
		               (unsigned long long)bucket_bytes);
		schedule_spec_clear(out);
	}
	return st;
}

gradcomp_status replan_open(gradcomp_reducer *r, const char *spec, uint64_t bucket_bytes, gradcomp_error *err)
{
	const config *c = r->job->config;
	struct replan *q = r->replan = calloc(1, sizeof *q);
	gradcomp_status st;
	uint64_t bytes;
	if (!q)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a schedule");
	st = parse(r, spec, bucket_bytes, &q->spec, err);
	if (st)
		return st;
	bytes = bucket_bytes ? bucket_bytes : q->spec.bytes;
	r->bucket_bytes = bytes ? bytes : (uint64_t)config_int(c, "reducer.bucket_bytes");
	r->first_bucket_bytes = bytes ? bytes : (uint64_t)config_int(c, "reducer.first_bucket_bytes");
	q->profile_steps = (uint32_t)config_int(c, "schedule.profile_steps");
	q->replan_steps = (uint32_t)config_int(c, "schedule.replan_steps");
	q->trial_steps = (uint32_t)config_int(c, "schedule.trial_steps");
	q->drift = config_float(c, "schedule.drift");
	q->measures = schedule_measures(q->spec.method) && r->group->nranks > 1;
	q->interval = q->replan_steps;
	/* A compressor that wants to know gets to know, whatever the plan. */
	if (q->measures || (r->compressor->measured && r->group->nranks > 1))
		q->next = q->profile_steps;
	q->phases = q->measures && q->profile_steps >= 2 * REPLAN_PHASES ? REPLAN_PHASES : 1;
	if (q->phases > 1)
		q->next = q->profile_steps / REPLAN_PHASES;
	return GRADCOMP_OK;
}

static gradcomp_status other_model(const gradcomp_reducer *r, const plan_file *f, gradcomp_error *err)
{
	uint64_t hash = 0;
	for (uint32_t i = 0; i < r->layout.ntensors; i++)
		hash = plan_hash(hash, r->tensors[i].ndim, r->tensors[i].dims);
	if (f->tensors == r->layout.ntensors && f->parameters == r->layout.numel && f->hash == hash)
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_MISMATCH,
	                 "plan file %s is of another model: '%s' has %u tensors and %llu parameters, this model has %u and "
	                 "%llu%s",
	                 r->replan->spec.file, f->model, f->tensors, (unsigned long long)f->parameters, r->layout.ntensors,
	                 (unsigned long long)r->layout.numel,
	                 f->tensors == r->layout.ntensors && f->parameters == r->layout.numel ? ", of other shapes" : "");
}

gradcomp_status replan_file(gradcomp_reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	plan_file f;
	gradcomp_status st;
	if (q->spec.method != SCHEDULE_PLAN)
		return GRADCOMP_OK;
	st = plan_file_read(q->spec.file, &f, err);
	if (st)
		return st;
	st = other_model(r, &f, err);
	if (!st && strcmp(f.compressor, r->compressor_spec))
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "plan file %s is for compressor '%s', this reducer has '%s'",
		               q->spec.file, f.compressor, r->compressor_spec);
	if (!st) {
		q->file = f.plan;
		f.plan = (step_plan){0};
		st = bucketing_check(r, &q->file, err);
	}
	if (!st && strcmp(f.collective, r->collective_spec))
		log_line(&r->job->log, GRADCOMP_LOG_INFO, "plan file %s is for collective '%s', this reducer has '%s'",
		         q->spec.file, f.collective, r->collective_spec);
	plan_file_clear(&f);
	return st;
}

void replan_close(gradcomp_reducer *r)
{
	struct replan *q = r->replan;
	if (!q)
		return;
	schedule_spec_clear(&q->spec);
	step_plan_clear(&q->file);
	step_plan_clear(&q->before);
	plan_msg_clear(&q->last);
	ab_test_clear(&q->trial);
	ab_test_clear(&q->then);
	free(q);
	r->replan = NULL;
}

const char *replan_asked(const gradcomp_reducer *r)
{
	return r->replan->spec.text;
}

uint64_t replan_hash(const gradcomp_reducer *r)
{
	const struct replan *q = r->replan;
	uint64_t h = id_mix(q->profile_steps, q->replan_steps), drift;
	memcpy(&drift, &q->drift, sizeof drift);
	h = id_mix(id_mix(id_mix(h, drift), q->trial_steps), q->file.lag);
	for (uint32_t b = 0; b < q->file.nbuckets; b++)
		h = id_mix(id_mix(h, q->file.end[b]), q->file.place ? q->file.place[b] : b);
	return h;
}

uint32_t replan_rows(const gradcomp_reducer *r)
{
	const struct replan *q = r->replan;
	return q->next && q->profile_steps > 16 ? q->profile_steps : 16;
}

gradcomp_status replan_first(const gradcomp_reducer *r, step_plan *out, gradcomp_error *err)
{
	const struct replan *q = r->replan;
	size_t n = q->file.nbuckets;
	switch (q->spec.method) {
	case SCHEDULE_WFBP:
	case SCHEDULE_SINGLE:
		return plan_solve_unmeasured(r, q->spec.method, out, err);
	case SCHEDULE_PLAN:
		*out = q->file;
		out->end = malloc(n * sizeof *out->end);
		out->place = q->file.place ? malloc(n * sizeof *out->place) : NULL;
		if (!out->end || (q->file.place && !out->place)) {
			step_plan_clear(out);
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %zu buckets", n);
		}
		memcpy(out->end, q->file.end, n * sizeof *out->end);
		if (out->place)
			memcpy(out->place, q->file.place, n * sizeof *out->place);
		return GRADCOMP_OK;
	default:
		return bucketing_fixed(r, out, err);
	}
}
