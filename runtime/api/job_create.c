/* The life of a job: all floors are put together here, and what they tell is written when it
 * is over. */
#include "api/job_join.h"
#include "api/job_report.h"

#include "base/error.h"
#include "survivors/roster.h"
#include "base/thread_pool.h"
#include "cost/model_capture.h"
#include "job/job_comment.h"
#include "job/rank_times.h"
#include "operators/operator_threads.h"
#include "kinds/enduring.h"
#include "trace/trace.h"
#include "plugin/plugin_host.h"

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
	rank_times_close(job->times);
	model_capture_abandon(job->model_capture);
	if (job->view)
		roster_view_clear(job->view);
	free(job->view);
	free(job->survivors);
	spec_table_clear(&job->specs);
	config_free(job->config);
	pthread_rwlock_destroy(&job->shrink_lock);
	pthread_mutex_destroy(&job->parts_lock);
	launch_order_close(&job->order);
	pthread_mutex_destroy(&job->lock);
	free(job);
}

/* srun's plugin leaves its version in the environment of a step with options, and the plugin of the same version in
 * slurmstepd takes it away. On a node without it the options have done nothing. */
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
	launch_order_open(&job->order);
	pthread_rwlock_init(&job->shrink_lock, NULL);
	job->started = clock_now();
	job->times = rank_times_open();
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
		st = log_level_parse(config_str(job->config, SET_GRADCOMP_LOG), &job->log.level, err);
	if (!st) {
		st = check_node_plugin(err);
		/* At once: others may be staging, and not there to hear it for long. */
		if (st)
			log_line(&job->log, GRADCOMP_LOG_ERROR, "%s", err->text);
	}
	if (!st)
		st = operator_threads_start(thread_pool_parse(config_str(job->config, SET_OPERATORS_THREADS)), err);
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
	plugin_host(&job->host, &job->log);
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
	job_report_watch(job, true);
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
	job_report_watch(job, false);
	st = transport_failure(job->transport, &failed);
	if (!st)
		rank_times_end(job);
	left = job->rank == 0 ? job_report_write(job, st ? failed.text : NULL, comment, err) : GRADCOMP_OK;
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
