#include "cost/model_capture.h"

#include "cost/planning.h"

#include <ctype.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/job_path.h"
#include "job/job.h"
#include "reducer/bucketing/profile.h"

struct model_capture {
	char *path;        /* absolute: the program may change its directory */
	model_file *model; /* the largest reducer's so far; NULL: there was none */
	uint64_t numel;
	uint32_t steps;
	double noise;
	int parts;            /* 1: a reducer chooses for each tensor */
	pthread_mutex_t lock; /* reducers may go on several threads */
};

void model_capture_abandon(model_capture *rec)
{
	if (!rec)
		return;
	model_file_free(rec->model);
	pthread_mutex_destroy(&rec->lock);
	free(rec->path);
	free(rec);
}

static gradcomp_status absolute(char **path, gradcomp_error *err)
{
	char *here, *whole = NULL;
	if (**path == '/')
		return GRADCOMP_OK;
	here = getcwd(NULL, 0);
	if (!here)
		return error_errno(err, GRADCOMP_ERR_IO, "record %s: the working directory", *path);
	if (asprintf(&whole, "%s/%s", here, *path) < 0)
		whole = NULL;
	free(here);
	if (!whole)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the record");
	free(*path);
	*path = whole;
	return GRADCOMP_OK;
}

/* It is published by rename, so what counts is the folder. */
static gradcomp_status writable(const char *path, gradcomp_error *err)
{
	size_t n = (size_t)(strrchr(path, '/') - path);
	char *folder = strndup(path, n ? n : 1);
	gradcomp_status st = GRADCOMP_OK;
	struct stat s;
	if (!folder)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the record");
	if (!lstat(path, &s) && !S_ISREG(s.st_mode))
		st = error_set(err, GRADCOMP_ERR_IO, "record %s: there is something of that name that is no file",
		               path);
	else if (access(folder, W_OK | X_OK))
		st = error_errno(err, GRADCOMP_ERR_IO, "record %s: directory %s", path, folder);
	free(folder);
	return st;
}

gradcomp_status model_capture_open(const char *path, gradcomp_job *job, gradcomp_error *err)
{
	model_capture *rec = calloc(1, sizeof *rec);
	gradcomp_status st;
	if (!rec)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the record");
	pthread_mutex_init(&rec->lock, NULL);
	st = job_path_expand("record", path, &rec->path, err);
	if (!st)
		st = absolute(&rec->path, err);
	if (!st)
		st = writable(rec->path, err);
	if (st) {
		model_capture_abandon(rec);
		return st;
	}
	job->model_capture = rec;
	job->on_reducer_free = model_capture_reducer;
	return GRADCOMP_OK;
}

static void name_it(model_file *m)
{
	const char *job = getenv("SLURM_JOB_NAME");
	snprintf(m->name, sizeof m->name, "%s", job && *job ? job : program_invocation_short_name);
	for (char *c = m->name; *c; c++)
		if (!isalnum((unsigned char)*c) && !strchr("._-", *c))
			*c = '-';
}

/* Forward order. What passes between two steps, less the waiting, is the forward pass; a
 * tensor's share of it is that of its numbers. */
static model_file *model_of(const reducer *r, const profile_summary *s, const double *beside, const double *slower)
{
	uint32_t n = r->eng.layout.ntensors;
	model_file *m = calloc(1, sizeof *m);
	if (!m || !(m->tensors = calloc(n, sizeof *m->tensors))) {
		free(m);
		return NULL;
	}
	m->ntensors = n;
	m->exchanging = beside[PROFILE_EXCHANGING];
	m->compressing = beside[PROFILE_COMPRESSING];
	m->slower_beside_exchange = slower[PROFILE_EXCHANGING];
	m->slower_beside_compute = slower[PROFILE_COMPRESSING];
	name_it(m);
	for (uint32_t i = 0; i < n; i++) {
		const gradcomp_tensor *from = &r->eng.layout.tensors[n - 1 - i];
		model_tensor *t = &m->tensors[i];
		t->name = strdup(from->name);
		t->dims = calloc(from->ndim + 1, sizeof *t->dims);
		if (!t->name || !t->dims) {
			model_file_free(m);
			return NULL;
		}
		if (from->ndim)
			memcpy(t->dims, from->dims, from->ndim * sizeof *t->dims);
		t->ndim = from->ndim;
		if (!s->steps)
			continue;
		t->backward = s->backward[n - 1 - i];
		t->forward = r->eng.layout.numel ? s->forward * ((double)from->numel / (double)r->eng.layout.numel) : 0;
	}
	return m;
}

void model_capture_reducer(model_capture *rec, reducer *r)
{
	const profile_summary *s;
	double beside[PROFILE_BESIDE], slower[PROFILE_BESIDE];
	model_file *m;
	if (!rec)
		return;
	s = profile_get(r);
	measure_beside(r, beside);
	measure_slower(r, slower);
	pthread_mutex_lock(&rec->lock);
	rec->parts |= r->base.report != NULL;
	if (!r->base.report &&
	    (!rec->model || r->eng.layout.numel > rec->numel ||
	     (r->eng.layout.numel == rec->numel && s->steps > rec->steps)) &&
	    (m = model_of(r, s, beside, slower))) {
		model_file_free(rec->model);
		rec->model = m;
		rec->numel = r->eng.layout.numel;
		rec->steps = s->steps;
		rec->noise = s->noise;
	}
	pthread_mutex_unlock(&rec->lock);
}

gradcomp_status model_capture_close(model_capture *rec, const log_sink *log, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (!rec)
		return st;
	if (!rec->model)
		log_line(log, GRADCOMP_LOG_WARN, "%s is not written: %s", rec->path,
		         rec->parts
		                 ? "the compressor treats parts of the model each in its way; record with another one"
		                 : "rank 0 had no reducer");
	else if (rec->steps < MODEL_CAPTURE_STEPS)
		log_line(log, GRADCOMP_LOG_WARN,
		         "%s is not written: only %u steps were measured, at least %d are needed", rec->path,
		         rec->steps, MODEL_CAPTURE_STEPS);
	else
		st = model_file_write(rec->path, rec->model, err);
	if (!st && rec->model && rec->steps >= MODEL_CAPTURE_STEPS && rec->noise > 0.25)
		log_line(log, GRADCOMP_LOG_WARN, "%s: the passes' times vary by %.0f %% of a step", rec->path,
		         100 * rec->noise);
	model_capture_abandon(rec);
	return st;
}
