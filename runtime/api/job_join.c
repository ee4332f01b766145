/* Joining a job: what ranks tell each other in their endpoint records.
 *
 * A rank that cannot join says so in its record, so that all the others fail with
 * its reason instead of waiting for it. */
#include "api/job_join.h"

#include "api/policy_calls.h"
#include "base/error.h"
#include "survivors/roster.h"
#include "cost/model_capture.h"
#include "security/job_secret.h"
#include "operators/operator_tables.h"
#include "kinds/autotune/tuner.h"
#include "kinds/kinds.h"
#include "trace/trace.h"
#include "transport/wire/endpoint.h"
#include "transport/verbs/verbs_module.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The part of transport.timeout that a busy munged is waited for: the others are still there to
 * hear how it went. */
#define MUNGE_PATIENCE 0.5

/* A record: "V<version>, about the secret, SPECs, their plugins, timeline, what a lost rank means, the
 * transport's endpoint" separated by tabs, or "E<rank> <text>" of a rank that cannot join. */
#define RECORD_TEXT BOOTSTRAP_MAX
_Static_assert(RECORD_TEXT >= JOB_SECRET_TEXT + 1024 /* SPECs */ + PLUGIN_PAIR_TEXT + TRACE_OPTIONS_TEXT + 32 +
                                      TRANSPORT_ENDPOINT_MAX,
               "the longest parts fit");

enum { RECORD_VERSION, RECORD_SECRET, RECORD_SPECS, RECORD_PLUGINS, RECORD_TIMELINE, RECORD_FAILURE, RECORD_PARTS };

/* A job that cannot begin ends when all ranks know why, or after so many seconds, at most half of
 * transport.timeout. */
#define HEARD_SECONDS 10.0

/* Resolves the SPECs that the settings ask for into the job's table, where reducers find them; gives their text in
 * full, and which plugins they are of. Where there may be several, they are compared when reducers are made. */
static gradcomp_status resolve_specs(gradcomp_job *job, char *out, size_t capacity, char plugin_text[PLUGIN_PAIR_TEXT],
                                     gradcomp_error *err)
{
	const config *c = job->config;
	const plugin *plugins[2];
	const spec *specs[2];
	gradcomp_policy *policy = NULL;
	gradcomp_status st = GRADCOMP_OK;
	registry_builtin(gradcomp_auto_info()->name);
	snprintf(plugin_text, PLUGIN_PAIR_TEXT, "several");
	const reducer_kind *kind = kinds_find(c, NULL);
	if (kind) {
		st = kind->check(&job->specs, NULL, NULL, err);
		snprintf(out, capacity, "%.500s/%.500s", config_str(c, SET_GRADCOMP_COMPRESSOR),
		         config_str(c, SET_GRADCOMP_COLLECTIVE));
		return st;
	}
	if (policy_is(config_str(c, SET_GRADCOMP_COMPRESSOR)))
		st = policy_read(c, NULL, NULL, &policy, err);
	if (!st)
		st = spec_table_job(&job->specs, policy ? "none" : NULL, NULL, plugins, specs, err);
	if (!st) {
		const char *text = policy ? policy->text : specs[0]->text;
		registry_identities(plugins, plugin_text);
		if (snprintf(out, capacity, "%s/%s", text, specs[1]->text) >= (int)capacity)
			st = error_set(err, GRADCOMP_ERR_INVALID, "SPEC '%.60s...' is too long", text);
	}
	policy_free(policy);
	return st;
}

/* Refuses before the job begins what cannot go on after a rank is lost. */
static gradcomp_status check_shrink(const config *c, const transport_options *o, gradcomp_error *err)
{
	if (o->frames)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "gradcomp.on_failure=shrink cannot be with security.frames=%s: must be none",
		                 config_str(c, SET_SECURITY_FRAMES));
	if (*config_str(c, SET_GRADCOMP_TRACE))
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"gradcomp.on_failure=shrink cannot be with gradcomp.trace: a timeline is of one set of ranks");
	if (!config_is_default(c, SET_TRANSPORT_ALLOW) && strstr(o->allow, "verbs"))
		return error_set(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"gradcomp.on_failure=shrink cannot be with transport.allow=%s: verbs cannot shrink; shm,tcp can",
			o->allow);
	return GRADCOMP_OK;
}

/* "F0", or of a rank whose job may outlive others where it answers, and min_ranks: "F40123/2". */
static gradcomp_status offer_roster(gradcomp_job *job, char out[32], gradcomp_error *err)
{
	int port = 0;
	gradcomp_status st = GRADCOMP_OK;
	if (job->transport_options.outlives && job->nranks > 1)
		st = roster_listen(&port, &job->roster, err);
	if (port)
		snprintf(out, 32, "F%d/%d", port, (int)config_int(job->config, SET_GRADCOMP_MIN_RANKS));
	else
		snprintf(out, 32, "F0");
	return st;
}

static gradcomp_status prepare(gradcomp_job *job, const char *space, char record[RECORD_TEXT], gradcomp_error *err)
{
	char specs[1024], plugins[PLUGIN_PAIR_TEXT], secret[JOB_SECRET_TEXT], timeline[TRACE_OPTIONS_TEXT], failure[32];
	const config *c = job->config;
	transport_options o = {
		.rank = job->rank,
		.nranks = job->nranks,
		.timeout = config_float(c, SET_TRANSPORT_TIMEOUT),
		.wait_timeout = config_float(c, SET_TRANSPORT_WAIT_TIMEOUT),
		.streams = (int)config_int(c, SET_TRANSPORT_STREAMS),
		.chunk = TRANSPORT_CHUNK,
		.spin_us = TRANSPORT_SPIN_US,
		.interface = config_str(c, SET_TRANSPORT_INTERFACE),
		.allow = config_str(c, SET_TRANSPORT_ALLOW),
		.cma = (int)config_int(c, SET_TRANSPORT_CMA),
		.zerocopy = ZEROCOPY_AUTO,
		.frames = (frames_mode)config_int(c, SET_SECURITY_FRAMES),
		.log = &job->log,
		.operators = operators_cpu(),
		.outlives = config_int(c, SET_GRADCOMP_ON_FAILURE) == FAILURE_SHRINK,
	};
	gradcomp_error missing = {0};
	gradcomp_status st = resolve_specs(job, specs, sizeof specs, plugins, err);
	if (!st && o.outlives)
		st = check_shrink(c, &o, err);
	if (st)
		return st;
	if (job->rank == 0 && *config_str(c, SET_GRADCOMP_REPORT)) {
		st = report_open(config_str(c, SET_GRADCOMP_REPORT), &job->report, err);
		if (st)
			return st;
	}
	if (job->rank == 0 && *config_str(c, SET_GRADCOMP_RECORD)) {
		st = model_capture_open(config_str(c, SET_GRADCOMP_RECORD), job, err);
		if (st)
			return st;
	}
	if (job->rank == 0 && *config_str(c, SET_GRADCOMP_TRACE)) {
		st = outfile_open_job("timeline", config_str(c, SET_GRADCOMP_TRACE), TRACE_ROOM, &job->trace_file, err);
		if (st)
			return st;
	}
	trace_options_write(&(trace_options){.events = job->trace_file ? (uint32_t)config_int(c, SET_TRACE_EVENTS) : 0,
	                                     .ranks = TRACE_RANKS},
	                    timeline);
	if (o.outlives)
		o.allow = config_is_default(c, SET_TRANSPORT_ALLOW) ? "shm,tcp" : o.allow;
	else
		verbs_options(c, &o, &missing);
	job->transport_options = o;
	st = transport_listen(&o, &job->transport, err);
	if (!st)
		st = offer_roster(job, failure, err);
	if (!st)
		st = job_secret_offer(config_str(c, SET_SECURITY_SECRET), job->rank, space, MUNGE_PATIENCE * o.timeout,
		                      &job->log, secret, err);
	if (st)
		return st;
	snprintf(record, RECORD_TEXT, "V%s\t%s\t%s\t%s\t%s\t%s\t%s", GRADCOMP_VERSION_STRING, secret, specs, plugins,
	         timeline, failure, transport_endpoint(job->transport));
	secret_wipe(secret, sizeof secret);
	return GRADCOMP_OK;
}

/* Keeps a timeline on all ranks if rank 0 wants one: each opens the channel it is gathered over. */
static gradcomp_status keep_timeline(gradcomp_job *job, const char *text, gradcomp_error *err)
{
	trace_options o;
	gradcomp_status st = trace_options_read(text, &o, err);
	if (st || !o.events)
		return st;
	outfile *file = job->trace_file;
	job->trace_file = NULL;
	return trace_open(&o, file, &job->trace, err);
}

/* Finds a record that another rank, or several, could not join with. */
static gradcomp_status find_refusal(const gradcomp_job *job, char *const *all, gradcomp_error *err)
{
	for (int r = 0; r < job->nranks; r++) {
		char *text;
		long who;

		if (!all[r] || all[r][0] != BOOTSTRAP_REFUSAL)
			continue;
		who = strtol(all[r] + 1, &text, 10);
		return error_set(err, GRADCOMP_ERR_PEER, "rank %ld cannot join: %s", who, text + (*text == ' '));
	}
	return GRADCOMP_OK;
}

/* Checks that rank r takes a lost rank as rank 0 does; *port: where it answers. */
static gradcomp_status failure_alike(const char *text, const char *text0, int r, int *port, gradcomp_error *err)
{
	int least = 0, least0 = 0, port0 = 0;
	*port = 0;
	sscanf(text, "F%d/%d", port, &least);
	sscanf(text0, "F%d/%d", &port0, &least0);
	if (!*port != !port0)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "rank %d has gradcomp.on_failure=%s, rank 0 has %s: all ranks must have the same", r,
		                 *port ? "shrink" : "abort", port0 ? "shrink" : "abort");
	if (least != least0)
		return error_set(err, GRADCOMP_ERR_MISMATCH,
		                 "rank %d has gradcomp.min_ranks=%d, rank 0 has %d: all ranks must have the same", r,
		                 least, least0);
	if (*port < 0 || *port > 65535)
		return error_set(err, GRADCOMP_ERR_INVALID, "the endpoint record of rank %d is not one of gradcomp", r);
	return GRADCOMP_OK;
}

/* Splits the records; endpoints[r] becomes rank r's endpoint of the transport. Names a rank that
 * is not like rank 0: all ranks find the same one. */
static gradcomp_status read_records(gradcomp_job *job, char **all, const char **endpoints,
                                    const char *text0[RECORD_PARTS], const char **own_secret, int *ports,
                                    gradcomp_error *err)
{
	for (int r = 0; r < job->nranks; r++) {
		char *rest = NULL;
		const char *part[RECORD_PARTS], *version, *secrets, *specs;
		char host[ENDPOINT_HOST_MAX], host0[ENDPOINT_HOST_MAX];
		gradcomp_status st;
		for (int i = 0; i < RECORD_PARTS; i++)
			part[i] = strtok_r(i ? NULL : all[r], "\t", &rest);
		version = part[RECORD_VERSION];
		secrets = part[RECORD_SECRET];
		specs = part[RECORD_SPECS];
		if (!version || version[0] != 'V' || !part[RECORD_FAILURE] || !rest || !*rest)
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "the endpoint record of rank %d is not one of gradcomp", r);
		if (r == 0)
			memcpy(text0, part, sizeof part);
		if (strcmp(version, text0[RECORD_VERSION]))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "rank %d runs gradcomp %s, rank 0 runs %s: use one installation", r,
			                 version + 1, text0[RECORD_VERSION] + 1);
		if (strcmp(specs, text0[RECORD_SPECS]))
			return error_set(err, GRADCOMP_ERR_MISMATCH,
			                 "rank %d asks for '%s', rank 0 for '%s': all ranks must use the same SPEC", r,
			                 specs, text0[RECORD_SPECS]);
		if (strcmp(part[RECORD_PLUGINS], text0[RECORD_PLUGINS]))
			return error_set(
				err, GRADCOMP_ERR_MISMATCH,
				"rank %d on %s has the plugins %s, rank 0 on %s has %s: all nodes must have the same files",
				r, endpoint_host(rest, host), part[RECORD_PLUGINS], endpoint_host(endpoints[0], host0),
				text0[RECORD_PLUGINS]);
		st = failure_alike(part[RECORD_FAILURE], text0[RECORD_FAILURE], r, &ports[r], err);
		if (st)
			return st;
		st = r ? job_secret_alike(text0[RECORD_SECRET], secrets, r, err) : GRADCOMP_OK;
		if (st)
			return st;
		if (r == job->rank)
			*own_secret = secrets;
		endpoints[r] = rest;
	}
	return GRADCOMP_OK;
}

gradcomp_status job_join(gradcomp_job *job, bootstrap *w, const gradcomp_error *refusal, gradcomp_error *err)
{
	unsigned char secret[TRANSPORT_SECRET_BYTES];
	/* A job of one rank has nobody to keep the secret from. */
	const char *space = strcmp(w->method->name, "pmix") || job->nranks == 1 ? NULL : getenv("PMIX_NAMESPACE");
	char record[RECORD_TEXT];
	double timeout = config_float(job->config, SET_TRANSPORT_TIMEOUT);
	char **all = calloc((size_t)job->nranks, sizeof *all);
	const char **endpoints = calloc((size_t)job->nranks, sizeof *endpoints);
	int *ports = calloc((size_t)job->nranks, sizeof *ports); /* those at which their rosters answer */
	const char *text0[RECORD_PARTS] = {NULL}, *own_secret = "";
	gradcomp_error own = {0};
	size_t secrets = 0; /* bytes of rank 0's text, before it is cut up */
	gradcomp_status mine, st;
	bool known; /* to all ranks: why the job cannot begin */
	if (!all || !endpoints || !ports) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the endpoints of %d ranks", job->nranks);
		goto done;
	}
	if (refusal)
		own = *refusal;
	mine = refusal ? refusal->status : prepare(job, space, record, &own);
	if (mine)
		snprintf(record, sizeof record, "%c%d %s", BOOTSTRAP_REFUSAL, job->rank, own.text);
	st = bootstrap_exchange(w, record, timeout, all, err);
	known = !st;
	if (all[0])
		secrets = strlen(all[0]);
	if (mine)
		st = error_set(err, mine, "%s", own.text);
	if (!st)
		st = find_refusal(job, all, err);
	if (!st)
		st = read_records(job, all, endpoints, text0, &own_secret, ports, err);
	known = known && st;
	if (known)
		bootstrap_heard(w, timeout / 2 < HEARD_SECONDS ? timeout / 2 : HEARD_SECONDS);
	if (!st)
		st = keep_timeline(job, text0[RECORD_TIMELINE], err);
	if (!st)
		st = job_secret_take(config_str(job->config, SET_SECURITY_SECRET), text0[RECORD_SECRET], own_secret,
		                     space, MUNGE_PATIENCE * timeout, &job->log, secret, err);
	if (!st)
		st = transport_start(job->transport, endpoints, secret, err);
	if (!st && job->roster)
		st = roster_begin(job->roster, job->transport, job->rank, job->nranks, endpoints, ports, &job->log,
		                  err);
	secret_wipe(secret, sizeof secret);
done:
	secret_wipe(record, sizeof record);
	if (secrets)
		secret_wipe(all[0], secrets);
	for (int r = 0; all && r < job->nranks; r++)
		free(all[r]);
	free(all);
	free(endpoints);
	free(ports);
	return st;
}
