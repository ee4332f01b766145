/* Joining and leaving a job.
 *
 * A rank that cannot join says so in its card, so that all the others fail with
 * its reason instead of waiting for it. */
#include "job.h"

#include "error.h"
#include "job_secret.h"
#include "wireup/wireup.h"
#include "operators/operators.h"
#include "operators/threads.h"
#include "verbs_module.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A card: "V<version>, about the secret, SPECs, transport card" parted by tabs,
 * or "E<text>" of a rank that cannot join. */
#define CARD_MAX WIREUP_MAX

double job_clock(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec * 1e-9;
}

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

/* The job's SPECs in canonical form: an error here is one before training. */
static gradcomp_status canonical_specs(const gradcomp_job *job, char *out, size_t capacity, gradcomp_error *err)
{
	const plugin *p[2];
	spec s[2];
	gradcomp_status st = registry_both(job->config, NULL, NULL, p, s, err);
	if (!st && snprintf(out, capacity, "%s/%s", s[0].text, s[1].text) >= (int)capacity)
		st = error_set(err, GRADCOMP_ERR_INVALID, "SPEC '%.60s...' is too long", s[0].text);
	spec_clear(&s[0]);
	spec_clear(&s[1]);
	return st;
}

static gradcomp_status prepare(gradcomp_job *job, const char *space, char card[CARD_MAX], gradcomp_error *err)
{
	char specs[1024], secret[JOB_SECRET_TEXT];
	const config *c = job->config;
	transport_options o = {
		.rank = job->rank,
		.nranks = job->nranks,
		.timeout = config_float(c, "transport.timeout"),
		.wait_timeout = config_float(c, "transport.wait_timeout"),
		.streams = (int)config_int(c, "transport.streams"),
		.chunk = (size_t)config_int(c, "transport.chunk"),
		.spin_us = (int)config_int(c, "transport.spin_us"),
		.interface = config_str(c, "transport.interface"),
		.allow = config_str(c, "transport.allow"),
		.cma = (int)config_int(c, "transport.cma"),
		.zerocopy = (zerocopy_mode)config_int(c, "transport.zerocopy"),
		.delay = config_str(c, "transport.delay_us"),
		.frames = (frames_mode)config_int(c, "security.frames"),
		.log = &job->log,
		.operators = operators_cpu(),
	};
	gradcomp_error missing = {0};
	gradcomp_status st = canonical_specs(job, specs, sizeof specs, err);
	if (st)
		return st;
	if (job->rank == 0 && *config_str(c, "gradcomp.report")) {
		st = report_open(config_str(c, "gradcomp.report"), &job->report, err);
		if (st)
			return st;
	}
	verbs_options(c, &o, &missing);
	st = transport_listen(&o, &job->transport, err);
	if (!st)
		st = job_secret_offer(config_str(c, "security.secret"), job->rank, space, &job->log, secret, err);
	if (st)
		return st;
	snprintf(card, CARD_MAX, "V%s\t%s\t%s\t%s", GRADCOMP_VERSION_STRING, secret, specs, transport_card(job->transport));
	secret_wipe(secret, sizeof secret);
	return GRADCOMP_OK;
}

/* Splits the cards; cards[r] becomes rank r's transport card. Names every rank
 * that is not like rank 0. */
static gradcomp_status read_cards(gradcomp_job *job, const char *space, char **all, const char **cards,
                                  unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err)
{
	const char *version0 = NULL, *specs0 = NULL;
	const char *secrets0 = "", *own = "";
	gradcomp_status st;
	for (int r = 0; r < job->nranks; r++)
		if (all[r][0] == 'E')
			return r == job->rank ? error_set(err, GRADCOMP_ERR_STATE, "%s", all[r] + 1)
			                      : error_set(err, GRADCOMP_ERR_PEER, "rank %d cannot join: %s", r, all[r] + 1);
	for (int r = 0; r < job->nranks; r++) {
		char *rest = NULL;
		const char *version = strtok_r(all[r], "\t", &rest), *secrets = strtok_r(NULL, "\t", &rest),
			   *specs = strtok_r(NULL, "\t", &rest);
		if (!version || version[0] != 'V' || !secrets || !specs || !rest || !*rest)
			return error_set(err, GRADCOMP_ERR_INVALID, "the card of rank %d is not one of gradcomp", r);
		if (r == 0) {
			version0 = version;
			specs0 = specs;
			secrets0 = secrets;
		}
		if (strcmp(version, version0))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "rank %d runs gradcomp %s, rank 0 runs %s: use one installation", r, version + 1,
			                 version0 + 1);
		if (strcmp(specs, specs0))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "rank %d asks for '%s', rank 0 for '%s': all ranks must use the same SPEC", r, specs,
			                 specs0);
		st = r ? job_secret_alike(secrets0, secrets, r, err) : GRADCOMP_OK;
		if (st)
			return st;
		if (r == job->rank)
			own = secrets;
		cards[r] = rest;
	}
	return job_secret_take(config_str(job->config, "security.secret"), secrets0, own, space, secret, err);
}

static gradcomp_status join(gradcomp_job *job, wireup *w, gradcomp_error *err)
{
	unsigned char secret[TRANSPORT_SECRET_BYTES];
	const char *space = strcmp(w->way->name, "pmix") ? NULL : getenv("PMIX_NAMESPACE");
	char card[CARD_MAX];
	double timeout = config_float(job->config, "transport.timeout");
	char **all = calloc((size_t)job->nranks, sizeof *all);
	const char **cards = calloc((size_t)job->nranks, sizeof *cards);
	gradcomp_error own = {0};
	size_t secrets = 0; /* bytes of rank 0's text, before it is cut up */
	gradcomp_status mine, st;
	if (!all || !cards) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the cards of %d ranks", job->nranks);
		goto done;
	}
	mine = prepare(job, space, card, &own);
	if (mine)
		snprintf(card, sizeof card, "E%s", own.text);
	st = wireup_exchange(w, card, timeout, all, err);
	if (all[0])
		secrets = strlen(all[0]);
	if (mine) {
		st = error_set(err, mine, "%s", own.text);
		goto done;
	}
	if (!st)
		st = read_cards(job, space, all, cards, secret, err);
	if (!st)
		st = transport_start(job->transport, cards, secret, err);
	secret_wipe(secret, sizeof secret);
done:
	secret_wipe(card, sizeof card);
	if (secrets)
		secret_wipe(all[0], secrets);
	for (int r = 0; all && r < job->nranks; r++)
		free(all[r]);
	free(all);
	free(cards);
	return st;
}

static void job_drop_reducer(report_reducer *r)
{
	for (uint32_t t = 0; t < r->ntensors; t++) {
		free((char *)r->tensors[t].name);
		free((char *)r->tensors[t].choice);
	}
	free((void *)r->tensors);
	free((char *)r->asked);
	free((char *)r->compressor);
	free((char *)r->collective);
}

static void job_destroy(gradcomp_job *job)
{
	for (uint32_t i = 0; i < job->nreducers; i++)
		job_drop_reducer(&job->reducers[i]);
	free(job->reducers);
	if (job->operator_threads)
		threads_stop();
	report_abandon(job->report);
	config_free(job->config);
	pthread_mutex_destroy(&job->lock);
	free(job);
}

gradcomp_status gradcomp_job_create(const gradcomp_job_options *options, gradcomp_job **out, gradcomp_error *err)
{
	const gradcomp_store *store = options && GRADCOMP_HAS(options, store) ? options->store : NULL;
	const char *const *settings = options && GRADCOMP_HAS(options, settings) ? options->settings : NULL;
	gradcomp_job *job = calloc(1, sizeof *job);
	int *ranks = NULL;
	wireup w = {0};
	gradcomp_error own;
	gradcomp_status st;
	*out = NULL;
	err = err ? err : &own;
	if (!job)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a job");
	pthread_mutex_init(&job->lock, NULL);
	job->started = job_clock();
	job->log.level = GRADCOMP_LOG_INFO;
	job->log.rank = -1;
	st = config_load(settings, &job->config, err);
	if (!st)
		st = log_level_parse(config_str(job->config, "gradcomp.log"), &job->log.level, err);
	if (!st)
		st = threads_start(threads_parse(config_str(job->config, "operators.threads")), err);
	job->operator_threads = !st;
	if (!st)
		st = wireup_open(job->config, store, &w, err);
	if (st)
		goto fail;
	job->rank = job->log.rank = w.rank;
	job->nranks = w.nranks;
	registry_host(&job->host, &job->log);
	st = join(job, &w, err);
	wireup_close(&w);
	ranks = malloc((size_t)job->nranks * sizeof *ranks);
	if (!st && !ranks)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %d ranks", job->nranks);
	for (int r = 0; !st && r < job->nranks; r++)
		ranks[r] = r;
	if (!st)
		st = group_create(job, 1, ranks, job->nranks, job->rank, &job->world, err);
	if (st)
		goto fail;
	free(ranks);
	*out = job;
	return GRADCOMP_OK;
fail:
	free(ranks);
	if (job->transport) {
		job_fail(job, st, err->text);
		transport_stop(job->transport, NULL);
	}
	job_destroy(job);
	return st;
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

#define PAIRS_RANKS 16 /* larger jobs' reports have the numbers of pairs alone */

/* What leads from where to where; r->pair is allocated. */
static void tell_ways(const transport *t, transport_way ways[4], report_way out[4], report_job *r)
{
	r->nways = (uint32_t)transport_ways(t, ways);
	r->ways = out;
	for (uint32_t i = 0; i < r->nways; i++)
		out[i] = (report_way){ways[i].transport, ways[i].pairs, ways[i].why_not};
	const char **pair = r->nranks <= PAIRS_RANKS ? calloc((size_t)r->nranks * (size_t)r->nranks, sizeof *pair) : NULL;
	for (int i = 0; pair && i < r->nranks * r->nranks; i++)
		pair[i] = transport_pair(t, i / r->nranks, i % r->nranks);
	r->pair = pair;
}

/* The report and the closing line, from rank 0. */
static gradcomp_status tell(gradcomp_job *job, const char *failure, gradcomp_error *err)
{
	transport_counts counts[4];
	report_link links[4];
	transport_way ways[4];
	report_way lines[4];
	int n = transport_stats(job->transport, counts), nnodes;
	const char **hosts = calloc((size_t)job->nranks, sizeof *hosts);
	gradcomp_status st = GRADCOMP_OK;
	char line[512];
	if (!hosts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the report");
	for (int r = 0; r < job->nranks; r++)
		hosts[r] = transport_host(job->transport, r);
	for (int i = 0; i < n; i++)
		links[i] = (report_link){counts[i].transport, counts[i].pairs, counts[i].sent, counts[i].received};
	transport_nodes(job->transport, &nnodes);
	report_job r = {.job_id = getenv("SLURM_JOB_ID"), .step_id = getenv("SLURM_STEP_ID"), .nranks = job->nranks,
	                .nnodes = nnodes, .hosts = hosts, .wall_s = job_clock() - job->started,
	                .reducers = job->reducers, .nreducers = job->nreducers, .links = links, .nlinks = (uint32_t)n,
	                .failure = failure};
	tell_ways(job->transport, ways, lines, &r);
	if (job->nreducers && !failure) {
		report_line(&r, line, sizeof line);
		log_line(&job->log, GRADCOMP_LOG_INFO, "%s", line);
	}
	if (job->report) {
		st = report_close(job->report, &r, err);
		job->report = NULL;
	}
	free((void *)r.pair);
	free(hosts);
	return st;
}

gradcomp_status gradcomp_job_free(gradcomp_job *job, gradcomp_error *err)
{
	gradcomp_error failed = {0};
	gradcomp_status st, left;
	if (!job)
		return GRADCOMP_OK;
	if (job->live)
		return error_set(err, GRADCOMP_ERR_STATE, "%d groups, links or reducers of the job have not been freed", job->live);
	st = transport_failure(job->transport, &failed);
	left = job->rank == 0 ? tell(job, st ? failed.text : NULL, err) : GRADCOMP_OK;
	group_destroy(job->world);
	st = transport_stop(job->transport, left ? NULL : err);
	job_destroy(job);
	return left ? left : st;
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

gradcomp_group *gradcomp_job_world(gradcomp_job *job)
{
	return job->world;
}

const char *gradcomp_job_setting(const gradcomp_job *job, const char *name)
{
	return config_find(job->config, name);
}
