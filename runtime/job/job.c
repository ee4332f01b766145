#include "job/job.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

void job_count(gradcomp_job *job, int delta)
{
	pthread_mutex_lock(&job->lock);
	job->live += delta;
	pthread_mutex_unlock(&job->lock);
}

gradcomp_status job_enter(gradcomp_job *job, const char *call, gradcomp_error *err)
{
	if (!pthread_rwlock_tryrdlock(&job->shrink_lock))
		return GRADCOMP_OK;
	return error_set(err, GRADCOMP_ERR_STATE,
	                 "%s: gradcomp_job_shrink() is at work on another thread: call it when that has returned",
	                 call);
}

void job_leave(gradcomp_job *job)
{
	pthread_rwlock_unlock(&job->shrink_lock);
}

void job_add_object(gradcomp_job *job, job_object *o)
{
	job_object **at = &job->objects;
	while (*at)
		at = &(*at)->next;
	o->next = NULL;
	*at = o;
}

void job_remove_object(gradcomp_job *job, job_object *o)
{
	job_object **at = &job->objects;
	while (*at && *at != o)
		at = &(*at)->next;
	if (*at)
		*at = o->next;
}

int job_count_objects(const gradcomp_job *job)
{
	int n = 0;
	for (const job_object *o = job->objects; o; o = o->next)
		n++;
	return n;
}

void job_fail(gradcomp_job *job, gradcomp_status status, const char *text)
{
	gradcomp_error named;
	error_set(&named, status, "rank %d on %s: %s", job->rank, transport_host(job->transport, job->rank), text);
	transport_fail(job->transport, status, job->rank, named.text);
}

static void drop_auto(report_auto *a)
{
	for (uint32_t i = 0; i < a->ncandidates; i++)
		free(a->candidates[i].spec);
	for (uint32_t i = 0; i < a->nswitches; i++)
		free(a->switches[i].to);
	free(a->candidates);
	free(a->switches);
	free(a->decision);
	free(a);
}

static void drop_schedule(report_schedule *s)
{
	free(s->asked);
	free(s->plan);
	free(s->fallback);
	free(s->buckets);
	free(s);
}

void job_drop_reducer(report_reducer *r)
{
	if (r->schedule)
		drop_schedule(r->schedule);
	if (r->tuner)
		drop_auto(r->tuner);
	for (uint32_t t = 0; t < r->ntensors; t++) {
		free((char *)r->tensors[t].name);
		free((char *)r->tensors[t].choice);
	}
	free((void *)r->tensors);
	free((char *)r->asked);
	free((char *)r->compressor);
	free((char *)r->collective);
}

gradcomp_status job_collective(gradcomp_job *job, const plugin **collective, const spec **values, gradcomp_error *err)
{
	return spec_table_get(&job->specs, GRADCOMP_KIND_COLLECTIVE, config_str(job->config, SET_GRADCOMP_COLLECTIVE),
	                      collective, values, err);
}

static bool same_specs(const char *const a[3], const char *const b[3])
{
	for (int i = 0; i < 3; i++)
		if (!a[i] || !b[i] || strcmp(a[i], b[i]))
			return false;
	return true;
}

/* Adds what a reducer has done to the row of another. */
static void reducer_join(gradcomp_reducer_stats *to, const gradcomp_reducer_stats *from)
{
	uint64_t steps = to->error_steps + from->error_steps;
	if (from->error_steps) {
		to->error_mean =
			(to->error_mean * (double)to->error_steps + from->error_mean * (double)from->error_steps) /
			(double)steps;
		to->error_last = from->error_last;
	}
	to->error_steps = steps;
	to->steps += from->steps;
	to->nonfinite_steps += from->nonfinite_steps;
	to->dense_bytes += from->dense_bytes;
	to->wire_bytes += from->wire_bytes;
	to->encode_s += from->encode_s;
	to->exchange_s += from->exchange_s;
	to->decode_s += from->decode_s;
	to->exposed_s += from->exposed_s;
}

static void coder_join(gradcomp_coder_stats *to, const gradcomp_coder_stats *from)
{
	to->reduce_scatters += from->reduce_scatters;
	to->all_gathers += from->all_gathers;
	to->nonfinite += from->nonfinite;
	to->dense_bytes += from->dense_bytes;
	to->wire_bytes += from->wire_bytes;
	to->convert_s += from->convert_s;
	to->exchange_s += from->exchange_s;
	to->exposed_s += from->exposed_s;
	to->slots = from->slots > to->slots ? from->slots : to->slots;
	to->residual_bytes = from->residual_bytes > to->residual_bytes ? from->residual_bytes : to->residual_bytes;
}

/* Rank 0 writes the report; another one may become rank 0 when ranks are lost. */
static bool reports(const gradcomp_job *job)
{
	return !job->rank || job->transport_options.outlives;
}

void job_keep_reducer(gradcomp_job *job, report_reducer *r)
{
	if (!reports(job)) {
		job_drop_reducer(r);
		return;
	}
	pthread_mutex_lock(&job->lock);
	if (job->nreducers == JOB_ROWS_KEPT) {
		uint32_t at = 0;
		while (at < job->nreducers - 1 &&
		       !same_specs((const char *[]){job->reducers[at].asked, job->reducers[at].compressor,
		                                    job->reducers[at].collective},
		                   (const char *[]){r->asked, r->compressor, r->collective}))
			at++;
		reducer_join(&job->reducers[at].stats, &r->stats);
		job_drop_reducer(r);
		pthread_mutex_unlock(&job->lock);
		return;
	}
	report_reducer *more = realloc(job->reducers, (job->nreducers + 1) * sizeof *more);
	if (more) {
		job->reducers = more;
		job->reducers[job->nreducers++] = *r;
	} else {
		log_line(&job->log, GRADCOMP_LOG_WARN, "no memory to keep a reducer for the report");
		job_drop_reducer(r);
	}
	pthread_mutex_unlock(&job->lock);
}

void job_drop_coder(report_coder *c)
{
	free(c->name);
	free(c->asked);
	free(c->compressor);
	free(c->collective);
}

void job_keep_coder(gradcomp_job *job, report_coder *c)
{
	if (!reports(job)) {
		job_drop_coder(c);
		return;
	}
	pthread_mutex_lock(&job->lock);
	if (job->ncoders == JOB_ROWS_KEPT) {
		uint32_t at = 0;
		while (at < job->ncoders - 1 &&
		       !same_specs((const char *[]){job->coders[at].asked, job->coders[at].compressor,
		                                    job->coders[at].collective},
		                   (const char *[]){c->asked, c->compressor, c->collective}))
			at++;
		coder_join(&job->coders[at].stats, &c->stats);
		job_drop_coder(c);
		pthread_mutex_unlock(&job->lock);
		return;
	}
	report_coder *more = realloc(job->coders, (job->ncoders + 1) * sizeof *more);
	if (more) {
		job->coders = more;
		job->coders[job->ncoders++] = *c;
	} else {
		log_line(&job->log, GRADCOMP_LOG_WARN, "no memory to keep a coder for the report");
		job_drop_coder(c);
	}
	pthread_mutex_unlock(&job->lock);
}

void job_show(gradcomp_job *job, job_part *part)
{
	part->job = job;
	pthread_mutex_lock(&job->parts_lock);
	part->next = job->parts;
	job->parts = part;
	pthread_mutex_unlock(&job->parts_lock);
}

void job_hide(job_part *part)
{
	if (!part->job)
		return;
	pthread_mutex_lock(&part->job->parts_lock);
	job_part **p = &part->job->parts;
	while (*p != part)
		p = &(*p)->next;
	*p = part->next;
	pthread_mutex_unlock(&part->job->parts_lock);
	part->job = NULL;
}

void job_rows_take(gradcomp_job *job, job_rows *out)
{
	uint32_t n = 0;
	*out = (job_rows){0};
	pthread_mutex_lock(&job->parts_lock);
	for (const job_part *p = job->parts; p; p = p->next)
		n++;
	pthread_mutex_lock(&job->lock);
	out->reducers = calloc(job->nreducers + n + 1, sizeof *out->reducers);
	out->coders = calloc(job->ncoders + n + 1, sizeof *out->coders);
	bool room = out->reducers && out->coders;
	if (room) {
		out->nreducers = out->freed_reducers = job->nreducers;
		out->ncoders = out->freed_coders = job->ncoders;
		for (uint32_t i = 0; i < job->nreducers; i++)
			out->reducers[i] = job->reducers[i];
		for (uint32_t i = 0; i < job->ncoders; i++)
			out->coders[i] = job->coders[i];
	}
	pthread_mutex_unlock(&job->lock);
	for (const job_part *p = room ? job->parts : NULL; p; p = p->next)
		if (p->reducer)
			p->reducer(p->of, &out->reducers[out->nreducers++]);
		else
			p->coder(p->of, &out->coders[out->ncoders++]);
	pthread_mutex_unlock(&job->parts_lock);
}

void job_rows_drop(job_rows *rows)
{
	for (uint32_t i = rows->freed_reducers; i < rows->nreducers; i++)
		job_drop_reducer(&rows->reducers[i]);
	for (uint32_t i = rows->freed_coders; i < rows->ncoders; i++)
		job_drop_coder(&rows->coders[i]);
	free(rows->reducers);
	free(rows->coders);
}

int gradcomp_job_rank(const gradcomp_job *job)
{
	return job->rank;
}

int gradcomp_job_nranks(const gradcomp_job *job)
{
	return job->nranks;
}

const char *gradcomp_job_host(const gradcomp_job *job, int rank)
{
	return rank >= 0 && rank < job->nranks ? transport_host(job->transport, rank) : NULL;
}

gradcomp_status gradcomp_job_check(const gradcomp_job *job, gradcomp_error *err)
{
	return transport_failure(job->transport, err);
}

gradcomp_group *gradcomp_job_world(gradcomp_job *job)
{
	return job->world;
}

const char *gradcomp_job_setting(const gradcomp_job *job, const char *name)
{
	return config_find(job->config, name);
}
