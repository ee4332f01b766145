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
	return spec_table_get(&job->specs, GRADCOMP_KIND_COLLECTIVE, config_str(job->config, "gradcomp.collective"),
	                      collective, values, err);
}

void job_keep_reducer(gradcomp_job *job, report_reducer *r)
{
	pthread_mutex_lock(&job->lock);
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
	pthread_mutex_lock(&job->lock);
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
