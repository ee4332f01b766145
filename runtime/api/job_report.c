#include "api/job_report.h"

#include "base/error.h"
#include "base/outfile.h"
#include "base/term_watch.h"
#include "cost/model_capture.h"
#include "job/live.h"
#include "job/rank_times.h"
#include "job/site_usage.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINK_MAP_RANKS 16 /* larger jobs' reports have how many pairs each kind of link connects alone */

/* Which kind of link connects whom; r->link_map is allocated. */
static void fill_links(const transport *t, link_map_row rows[4], report_link_kind out[4], report_job *r)
{
	r->nlink_kinds = (uint32_t)transport_link_map(t, rows);
	r->link_kinds = out;
	for (uint32_t i = 0; i < r->nlink_kinds; i++)
		out[i] = (report_link_kind){rows[i].transport, rows[i].pairs, rows[i].why_not};
	const char **map =
		r->nranks <= LINK_MAP_RANKS ? calloc((size_t)r->nranks * (size_t)r->nranks, sizeof *map) : NULL;
	for (int i = 0; map && i < r->nranks * r->nranks; i++)
		map[i] = transport_pair(t, i / r->nranks, i % r->nranks);
	r->link_map = map;
}

/* Leaves a file for the site. It is no matter of the job's: one that cannot leave it has not failed. */
static void leave_usage(gradcomp_job *job, const report_job *r)
{
	const char *dir = config_str(job->config, SET_REPORT_METRICS);
	gradcomp_error err;
	site_usage u;
	if (*dir && site_usage_of_job(r, &u) && site_usage_leave(dir, &u, &err))
		log_line(&job->log, GRADCOMP_LOG_WARN, "%s", err.text);
}

/* All that a report says of the job, and what it points to. */
typedef struct picture {
	report_job job;
	report_link links[4];
	report_link_kind kinds[4];
	network_row networks[NETWORKS_MAX];
	job_rows rows;
	const char **hosts;
	rank_times *times;
} picture;

static void picture_drop(picture *p)
{
	job_rows_drop(&p->rows);
	free((void *)p->job.link_map);
	free((void *)p->hosts);
	free(p->times);
}

/* Finds the rank that holds up the others: in the whole job, or lately. */
static void take_times(gradcomp_job *job, picture *p, bool lately)
{
	p->times = rank_times_table(job);
	p->job.times = p->times;
	if (!p->times)
		return;
	if (rank_times_slowest(job, p->times, lately, &p->job.slow))
		p->job.slow_host = p->hosts[p->job.slow.rank];
}

/* Which ranks are linked by what takes a while in a large job. */
static gradcomp_status picture_take(gradcomp_job *job, picture *p, bool links, gradcomp_error *err)
{
	transport_counts counts[4];
	link_map_row rows[4];
	int n = transport_stats(job->transport, counts), nnodes;
	p->hosts = calloc((size_t)job->nranks, sizeof *p->hosts);
	if (!p->hosts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report");
	for (int r = 0; r < job->nranks; r++)
		p->hosts[r] = transport_host(job->transport, r);
	for (int i = 0; i < n; i++)
		p->links[i] = (report_link){counts[i].transport, counts[i].pairs, counts[i].sent, counts[i].received};
	transport_nodes(job->transport, &nnodes);
	job_rows_take(job, &p->rows);
	if (!p->rows.reducers || !p->rows.coders) {
		picture_drop(p);
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report");
	}
	p->job = (report_job){.job_id = getenv("SLURM_JOB_ID"),
	                      .step_id = getenv("SLURM_STEP_ID"),
	                      .nranks = job->nranks,
	                      .nnodes = nnodes,
	                      .hosts = p->hosts,
	                      .wall_s = clock_now() - job->started,
	                      .reducers = p->rows.reducers,
	                      .nreducers = p->rows.nreducers,
	                      .coders = p->rows.coders,
	                      .ncoders = p->rows.ncoders,
	                      .links = p->links,
	                      .nlinks = (uint32_t)n};
	p->job.networks = p->networks;
	p->job.nnetworks = (uint32_t)transport_networks(job->transport, p->networks);
	take_times(job, p, !links);
	if (links)
		fill_links(job->transport, rows, p->kinds, &p->job);
	return GRADCOMP_OK;
}

/* The report of a job that SIGTERM ends. Beside the threads of the program and of the job: the
 * process does not live to free what this takes. */
static void report_term(void *ctx, int signal)
{
	gradcomp_job *job = ctx;
	char text[80], *path = strdup(outfile_path(job->report));
	gradcomp_error err;
	uint64_t steps = 0;
	picture p = {0};
	gradcomp_status st = picture_take(job, &p, true, &err);
	if (!st) {
		for (uint32_t i = 0; i < p.job.nreducers; i++)
			steps = p.job.reducers[i].stats.steps > steps ? p.job.reducers[i].stats.steps : steps;
		snprintf(text, sizeof text, "ended by signal %d after step %llu", signal, (unsigned long long)steps);
		p.job.failure = text;
		st = report_close(job->report, &p.job, &err);
	}
	if (st)
		log_line(&job->log, GRADCOMP_LOG_WARN, "signal %d ends the job, and there is no report: %s", signal,
		         err.text);
	else
		log_line(&job->log, GRADCOMP_LOG_WARN, "%s; the report is %s", text, path ? path : "there");
	free(path);
}

/* Answers `gradcomp watch`, beside the threads of the program and of the job. */
static void tell_live(void *ctx, FILE *out)
{
	gradcomp_job *job = ctx;
	gradcomp_error failed = {0}, err;
	picture p = {0};
	if (picture_take(job, &p, false, &err))
		return;
	if (transport_failure(job->transport, &failed))
		p.job.failure = failed.text;
	live_write(out, &p.job);
	picture_drop(&p);
}

void job_report_watch(gradcomp_job *job, bool on)
{
	gradcomp_error err;
	if (job->watched && !on)
		term_watch_stop();
	job->watched = on && job->report && (job->watched || term_watch_start(report_term, job));
	live_close(job->live_server);
	job->live_server = NULL;
	if (on && job->rank == 0 && config_int(job->config, SET_REPORT_LIVE) &&
	    live_open(tell_live, job, &job->live_server, &err))
		log_line(&job->log, GRADCOMP_LOG_DEBUG, "%s", err.text);
}

gradcomp_status job_report_write(gradcomp_job *job, const char *failure, char comment[JOB_COMMENT_LINE],
                                 gradcomp_error *err)
{
	char line[640];
	picture p = {0};
	gradcomp_status st = picture_take(job, &p, true, err);
	if (st)
		return st;
	report_job r = p.job;
	r.failure = failure;
	if (job->nreducers && !failure) {
		report_line(&r, line, sizeof line);
		log_line(&job->log, GRADCOMP_LOG_INFO, "%s", line);
	}
	for (uint32_t i = 0; i < job->ncoders && !failure && i < REPORT_CODER_LINES; i++) {
		report_coder_line(&r, i, line, sizeof line);
		log_line(&job->log, GRADCOMP_LOG_INFO, "%s", line);
	}
	report_slow_line(&r, line, sizeof line);
	if (*line && !failure)
		log_line(&job->log, GRADCOMP_LOG_INFO, "%s", line);
	leave_usage(job, &r);
	if (!config_int(job->config, SET_REPORT_COMMENT) || !job_comment_line(&r, comment))
		*comment = '\0';
	if (job->report) {
		st = report_close(job->report, &r, err);
		job->report = NULL;
	}
	if (job->model_capture && !failure && !st)
		st = model_capture_close(job->model_capture, &job->log, err);
	else
		model_capture_abandon(job->model_capture);
	job->model_capture = NULL;
	picture_drop(&p);
	return st;
}
