/* The life of a job: all floors are put together here, and what they tell is written when it
 * is over. */
#include "api/job_join.h"

#include "base/error.h"
#include "base/term_watch.h"
#include "base/thread_pool.h"
#include "cost/model_capture.h"
#include "job/job_comment.h"
#include "job/live.h"
#include "job/site_usage.h"
#include "operators/operator_threads.h"
#include "reducer/enduring.h"
#include "trace/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void destroy(gradcomp_job *job)
{
	for (uint32_t i = 0; i < job->nreducers; i++)
		job_drop_reducer(&job->reducers[i]);
	free(job->reducers);
	for (uint32_t i = 0; i < job->ncoders; i++)
		job_drop_coder(&job->coders[i]);
	free(job->coders);
	trace_abandon(job->trace);
	outfile_abandon(job->trace_file);
	if (job->operator_threads)
		operator_threads_stop();
	report_abandon(job->report);
	model_capture_abandon(job->model_capture);
	roster_view_clear(&job->view);
	free(job->survivors);
	spec_table_clear(&job->specs);
	config_free(job->config);
	pthread_rwlock_destroy(&job->shrink_lock);
	pthread_mutex_destroy(&job->parts_lock);
	pthread_mutex_destroy(&job->lock);
	free(job);
}

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

/* For the site. It is no matter of the job's: one that cannot leave it has not failed. */
static void leave_usage(gradcomp_job *job, const report_job *r)
{
	const char *dir = config_str(job->config, "report.metrics");
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
} picture;

static void picture_drop(picture *p)
{
	job_rows_drop(&p->rows);
	free((void *)p->job.link_map);
	free((void *)p->hosts);
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

/* For `gradcomp watch`, beside the threads of the program and of the job. */
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

void job_observe(gradcomp_job *job, bool on)
{
	gradcomp_error err;
	if (job->watched && !on)
		term_watch_stop();
	job->watched = on && job->report && (job->watched || term_watch_start(report_term, job));
	live_close(job->live_server);
	job->live_server = NULL;
	if (on && job->rank == 0 && config_int(job->config, "report.live") &&
	    live_open(tell_live, job, &job->live_server, &err))
		log_line(&job->log, GRADCOMP_LOG_DEBUG, "%s", err.text);
}

/* srun's plugin leaves its version in the environment of a step with options, and the plugin of the same version in slurmstepd takes it
 * away. On a node without it the options have done nothing. */
static gradcomp_status check_node_plugin(gradcomp_error *err)
{
	const char *left = getenv("SLURM_GRADCOMP_PLUGIN"), *other;
	char host[65] = "?";
	if (!left || !*left)
		return GRADCOMP_OK;
	gethostname(host, sizeof host - 1);
	other = strchr(left, ' ');
	if (other)
		return error_set(
			err, GRADCOMP_ERR_MISMATCH,
			"node %s: its slurmd has the SPANK plugin of gradcomp %.30s, srun has that of %.*s: install one version, and look at "
			"plugstack.conf on %s",
			host, other + 1, (int)(other - left < 30 ? other - left : 30), left, host);
	return error_set(
		err, GRADCOMP_ERR_MISMATCH,
		"node %s: its slurmd has not the SPANK plugin of gradcomp %.30s, which srun has: name spank_gradcomp.so in plugstack.conf on %s",
		host, left, host);
}

static void warn_unknown(void *ctx, const char *text)
{
	log_line(ctx, GRADCOMP_LOG_WARN, "%s", text);
}

gradcomp_status gradcomp_job_create(const gradcomp_job_options *options, gradcomp_job **out, gradcomp_error *err)
{
	const gradcomp_store *store = options && GRADCOMP_HAS(options, store) ? options->store : NULL;
	const char *const *settings = options && GRADCOMP_HAS(options, settings) ? options->settings : NULL;
	gradcomp_job *job = calloc(1, sizeof *job);
	int *ranks = NULL;
	bootstrap w = {0};
	gradcomp_error own = {0}, refusal = {0}, ignored;
	gradcomp_status st, opened;
	*out = NULL;
	err = err ? err : &own;
	if (!job)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a job");
	pthread_mutex_init(&job->lock, NULL);
	pthread_mutex_init(&job->parts_lock, NULL);
	pthread_rwlock_init(&job->shrink_lock, NULL);
	job->started = clock_now();
	job->log.level = GRADCOMP_LOG_INFO;
	job->log.rank = -1;
	st = config_load(settings, &job->config, err);
	/* The other ranks are to hear what is wrong with the settings of this one. */
	if (st)
		job->config = config_load_defaults();
	if (!job->config)
		goto fail;
	spec_table_init(&job->specs, job->config);
	if (!st)
		st = log_level_parse(config_str(job->config, "gradcomp.log"), &job->log.level, err);
	if (!st) {
		st = check_node_plugin(err);
		/* At once: others may be staging, and not there to hear it for long. */
		if (st)
			log_line(&job->log, GRADCOMP_LOG_ERROR, "%s", err->text);
	}
	if (!st)
		st = operator_threads_start(thread_pool_parse(config_str(job->config, "operators.threads")), err);
	job->operator_threads = !st;
	refusal.status = st;
	if (st)
		snprintf(refusal.text, sizeof refusal.text, "%s", err->text);
	opened = bootstrap_open(job->config, store, &w, st ? &ignored : err);
	st = st ? st : opened;
	if (opened)
		goto fail;
	job->rank = job->log.rank = w.rank;
	job->nranks = w.nranks;
	registry_host(&job->host, &job->log);
	if (job->rank == 0)
		config_unknown(warn_unknown, &job->log);
	st = job_join(job, &w, st ? &refusal : NULL, err);
	bootstrap_close(&w);
	ranks = malloc((size_t)job->nranks * sizeof *ranks);
	if (!st && !ranks)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", job->nranks);
	for (int r = 0; !st && r < job->nranks; r++)
		ranks[r] = r;
	if (!st)
		st = group_create(job, 1, ranks, job->nranks, job->rank, &job->world, err);
	if (!st && job->trace)
		st = trace_begin(job, err);
	if (st)
		goto fail;
	free(ranks);
	job_observe(job, true);
	*out = job;
	return GRADCOMP_OK;
fail:
	free(ranks);
	trace_abandon(job->trace);
	job->trace = NULL;
	group_destroy(job->world);
	roster_close(job->roster);
	if (job->transport) {
		job_fail(job, st, err->text);
		transport_stop(job->transport, NULL);
	}
	destroy(job);
	return st;
}

/* The report and the closing line, from rank 0; the line for the job's comment, "": none. */
static gradcomp_status write_report(gradcomp_job *job, const char *failure, char comment[JOB_COMMENT_LINE],
                                    gradcomp_error *err)
{
	char line[512];
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
	leave_usage(job, &r);
	if (!config_int(job->config, "report.comment") || !job_comment_line(&r, comment))
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

gradcomp_status gradcomp_job_free(gradcomp_job *job, gradcomp_error *err)
{
	gradcomp_error failed = {0}, uncommented;
	gradcomp_status st, left;
	char comment[JOB_COMMENT_LINE] = "";
	if (!job)
		return GRADCOMP_OK;
	/* A call that has failed may have made something that the program does not know of. */
	enduring_sweep(job);
	job_sweep_objects(job);
	if (job->live)
		return error_set(err, GRADCOMP_ERR_STATE,
		                 "%d groups, links, reducers or coders of the job have not been freed", job->live);
	job_observe(job, false);
	st = transport_failure(job->transport, &failed);
	left = job->rank == 0 ? write_report(job, st ? failed.text : NULL, comment, err) : GRADCOMP_OK;
	if (job->trace) {
		gradcomp_status traced = trace_end(job, st != GRADCOMP_OK, left ? NULL : err);
		left = left ? left : traced;
	}
	job_shrink_leaving(job);
	group_destroy(job->world);
	roster_close(job->roster);
	st = transport_stop(job->transport, left ? NULL : err);
	/* No other rank waits any more. */
	if (*comment && job_comment_leave(comment, &uncommented))
		log_line(&job->log, GRADCOMP_LOG_INFO, "no line in the job's comment: %s", uncommented.text);
	destroy(job);
	return left ? left : st;
}
