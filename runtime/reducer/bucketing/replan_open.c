/* Reads what is asked of a reducer's schedule, and makes the plan of its first step. */
#include "reducer/bucketing/replan_internal.h"

#include "reducer/bucketing/bucketing.h"
#include "schedule/plan_file.h"
#include "reducer/bucketing/plan_solve.h"
#include "reducer/word_sync.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

/* Without a schedule of its own and with bytes of its own a reducer has fixed buckets. */
static gradcomp_status parse(spec_table *specs, const char *asked, uint64_t bucket_bytes, schedule_spec *out,
                             gradcomp_error *err)
{
	gradcomp_error inner = {0};
	const char *text = asked ? asked : bucket_bytes ? "fixed" : config_str(specs->config, SET_GRADCOMP_SCHEDULE);
	const gradcomp_plugin_info *info = schedule_spec_info(text, &inner);
	const spec *values = NULL;
	gradcomp_status st = info ? spec_table_builtin(specs, info, text, &values, &inner) : inner.status;
	if (!st)
		st = schedule_spec_read(info, values, out, &inner);
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

gradcomp_status replan_request_read(spec_table *specs, const char *asked, uint64_t bucket_bytes, schedule_request *out,
                                    gradcomp_error *err)
{
	const config *c = specs->config;
	gradcomp_status st;
	uint64_t bytes;
	*out = (schedule_request){0};
	st = parse(specs, asked, bucket_bytes, &out->spec, err);
	if (st)
		return st;
	bytes = bucket_bytes ? bucket_bytes : out->spec.bytes;
	out->bucket_bytes = bytes ? bytes : (uint64_t)config_int(c, SET_REDUCER_BUCKET_BYTES);
	out->first_bucket_bytes = bytes ? bytes : schedule_first_bytes(out->bucket_bytes);
	out->profile_steps = (uint32_t)config_int(c, SET_SCHEDULE_PROFILE_STEPS);
	out->replan_steps = (uint32_t)config_int(c, SET_SCHEDULE_REPLAN_STEPS);
	return GRADCOMP_OK;
}

void replan_request_clear(schedule_request *q)
{
	schedule_spec_clear(&q->spec);
}

uint64_t replan_request_hash(const schedule_request *q, const step_plan *file)
{
	uint64_t h = id_mix(id_mix(q->profile_steps, q->replan_steps), file ? file->lag : 0);
	for (uint32_t b = 0; file && b < file->nbuckets; b++)
		h = id_mix(id_mix(h, file->end[b]), file->position ? file->position[b] : b);
	return h;
}

static void warn_of_other(const reducer *r, const char *own, const schedule_spec *taken)
{
	if (own && strcmp(own, taken->text) && !r->eng.group->me)
		log_line(&r->eng.job->log, GRADCOMP_LOG_WARN,
		         "schedule '%s' was asked for; %s is made for '%s', in which no tensor waits for another",
		         taken->text, r->eng.compressor_spec, own);
}

gradcomp_status replan_open(reducer *r, const char *spec, uint64_t bucket_bytes, gradcomp_error *err)
{
	struct replan *q = r->replan = calloc(1, sizeof *q);
	/* The schedule that the compressor is made for; NULL: any will do. */
	const char *own = r->eng.compressor->schedule ? r->eng.compressor->schedule(r->eng.values) : NULL;
	const schedule_request *asked;
	gradcomp_status st;
	if (!q)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a schedule");
	if (!spec && !bucket_bytes && config_is_default(r->eng.job->specs.config, SET_GRADCOMP_SCHEDULE))
		spec = own; /* where nobody names one */
	st = replan_request_read(&r->eng.job->specs, spec, bucket_bytes, &q->asked, err);
	if (st)
		return st;
	asked = &q->asked;
	warn_of_other(r, own, &asked->spec);
	r->bucket_bytes = asked->bucket_bytes;
	r->first_bucket_bytes = asked->first_bucket_bytes;
	q->measures = schedule_measures(asked->spec.method) && r->eng.group->nranks > 1;
	q->interval = asked->replan_steps;
	/* A compressor that wants to know gets to know, whatever the plan. */
	if (q->measures || (r->eng.compressor->measured && r->eng.group->nranks > 1))
		q->next = asked->profile_steps;
	q->phases = q->measures && asked->profile_steps >= 2 * REPLAN_PHASES ? REPLAN_PHASES : 1;
	if (q->phases > 1)
		q->next = asked->profile_steps / REPLAN_PHASES;
	return GRADCOMP_OK;
}

static gradcomp_status other_model(const reducer *r, const plan_file *f, gradcomp_error *err)
{
	uint64_t hash = 0;
	for (uint32_t i = 0; i < r->eng.layout.ntensors; i++)
		hash = plan_hash(hash, r->eng.layout.tensors[i].ndim, r->eng.layout.tensors[i].dims);
	if (f->tensors == r->eng.layout.ntensors && f->parameters == r->eng.layout.numel && f->hash == hash)
		return GRADCOMP_OK;
	return error_set(
		err, GRADCOMP_ERR_MISMATCH,
		"plan file %s is of another model: '%s' has %u tensors and %llu parameters, this model has %u and "
		"%llu%s",
		r->replan->asked.spec.file, f->model, f->tensors, (unsigned long long)f->parameters,
		r->eng.layout.ntensors, (unsigned long long)r->eng.layout.numel,
		f->tensors == r->eng.layout.ntensors && f->parameters == r->eng.layout.numel ? ", of other shapes"
											     : "");
}

gradcomp_status replan_file(reducer *r, gradcomp_error *err)
{
	struct replan *q = r->replan;
	plan_file f;
	gradcomp_status st;
	if (q->asked.spec.method != SCHEDULE_PLAN)
		return GRADCOMP_OK;
	st = plan_file_read(q->asked.spec.file, &f, err);
	if (st)
		return st;
	st = other_model(r, &f, err);
	if (!st && strcmp(f.compressor, r->eng.compressor_spec))
		st = error_set(err, GRADCOMP_ERR_MISMATCH, "plan file %s is for compressor '%s', this reducer has '%s'",
		               q->asked.spec.file, f.compressor, r->eng.compressor_spec);
	if (!st) {
		q->file = f.plan;
		f.plan = (step_plan){0};
		st = bucketing_check(r, &q->file, err);
	}
	if (!st && strcmp(f.collective, r->specs.collective))
		log_line(&r->eng.job->log, GRADCOMP_LOG_INFO,
		         "plan file %s is for collective '%s', this reducer has '%s'", q->asked.spec.file, f.collective,
		         r->specs.collective);
	plan_file_clear(&f);
	return st;
}

void replan_close(reducer *r)
{
	struct replan *q = r->replan;
	if (!q)
		return;
	replan_request_clear(&q->asked);
	step_plan_clear(&q->file);
	step_plan_clear(&q->before);
	plan_msg_clear(&q->last);
	ab_test_clear(&q->ab_test);
	ab_test_clear(&q->then);
	free(q);
	r->replan = NULL;
}

const char *replan_asked(const reducer *r)
{
	return r->replan->asked.spec.text;
}

uint64_t replan_hash(const reducer *r)
{
	return replan_request_hash(&r->replan->asked, &r->replan->file);
}

uint32_t replan_rows(const reducer *r)
{
	const struct replan *q = r->replan;
	return q->next && q->asked.profile_steps > 16 ? q->asked.profile_steps : 16;
}

gradcomp_status replan_first(const reducer *r, step_plan *out, gradcomp_error *err)
{
	const struct replan *q = r->replan;
	size_t n = q->file.nbuckets;
	switch (q->asked.spec.method) {
	case SCHEDULE_WFBP:
	case SCHEDULE_SINGLE:
		return plan_solve_simple(r, q->asked.spec.method, out, err);
	case SCHEDULE_PLAN:
		*out = q->file;
		out->end = malloc(n * sizeof *out->end);
		out->position = q->file.position ? malloc(n * sizeof *out->position) : NULL;
		if (!out->end || (q->file.position && !out->position)) {
			step_plan_clear(out);
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a plan of %zu buckets", n);
		}
		memcpy(out->end, q->file.end, n * sizeof *out->end);
		if (out->position)
			memcpy(out->position, q->file.position, n * sizeof *out->position);
		return GRADCOMP_OK;
	default:
		return plan_solve_simple(r, SCHEDULE_FIXED, out, err);
	}
}
