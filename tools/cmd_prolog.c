/* gradcomp prolog: what the prolog of every job stages, for all users of the node. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "io/cache/manage.h"
#include "gradcomp/stage.h"
#include "base/number.h"
#include "config/config.h"

static const char usage[] = "usage: gradcomp prolog --plan | --job ID | --check [--records DIR]\n"
			    "\n"
			    "Stages the sources that [stage] shared declares and keeps them for job ID, until\n"
			    "gradcomp cache gc --shared --job ID. The SPANK plugin runs it in the prolog of every\n"
			    "job when [stage] prolog=yes, as [stage] shared_user.\n"
			    "\n"
			    "  --plan   print the account and the time limit in seconds; nothing with prolog=no\n"
			    "  --check  whether slurmd runs the prologs and epilogs of the SPANK plugin on this node;\n"
			    "           status 1 when a job was started without, for health checks\n"
			    "  --records DIR\n"
			    "           records= of plugstack.conf  [/run/gradcomp]\n";

static int stop(void *ctx, const gradcomp_stage_progress *p)
{
	(void)ctx, (void)p;
	return command_caught_signal() != 0;
}

static int stage_one(const char *source, int64_t job)
{
	gradcomp_stage_options o = {
		.struct_size = sizeof o, .source = source, .flags = GRADCOMP_STAGE_SHARED, .progress = stop};
	gradcomp_cache_options shared = {.struct_size = sizeof shared, .flags = GRADCOMP_CACHE_SHARED};
	static gradcomp_stage_result r;
	gradcomp_error err;
	char holder[32], name[256];
	memset(&r, 0, sizeof r);
	r.struct_size = sizeof r;
	snprintf(holder, sizeof holder, "job %lld", (long long)job);
	if (gradcomp_stage(&o, &r, &err) || gradcomp_cache_lease_job(&shared, r.key, job, holder, &err)) {
		fprintf(stderr, "gradcomp: %s: %s\n", gradcomp_printable(source, name, sizeof name), err.text);
		return 1;
	}
	return 0;
}

/* Says by whom and how long (`plan`), or stages for a job. */
static int stage_shared(const config *c, bool plan, int64_t job)
{
	char *shared = strdup(config_str(c, SET_STAGE_SHARED)), *rest, *source;
	int status = 0;
	if (shared && *shared && plan)
		printf("%s %s\n", config_str(c, SET_STAGE_SHARED_USER), config_str(c, SET_STAGE_PROLOG_TIMEOUT));
	if (shared && job)
		for (source = strtok_r(shared, ",", &rest); source; source = strtok_r(NULL, ",", &rest))
			status |= stage_one(source, job);
	free(shared);
	return status;
}

prolog_mark prolog_seen(const char *records)
{
	char path[4096];
	int n = snprintf(path, sizeof path, "%s/prolog", records);
	if (n < (int)sizeof path && access(path, F_OK) == 0)
		return PROLOG_RUNS;
	snprintf(path, sizeof path, "%s/unseen", records);
	return access(path, F_OK) == 0 ? PROLOG_UNSEEN : PROLOG_UNKNOWN;
}

static int look_for_mark(const char *records)
{
	prolog_mark mark = prolog_seen(records);
	char dir[256];
	if (mark == PROLOG_UNSEEN) {
		fprintf(stderr,
		        "gradcomp: slurmd on this node runs neither prolog nor epilog of gradcomp (%s/unseen): it was "
		        "started before plugstack.conf named the plugin; restart it\n",
		        gradcomp_printable(records, dir, sizeof dir));
		return 1;
	}
	puts(mark == PROLOG_RUNS ? "slurmd on this node runs the prologs and epilogs of gradcomp"
	                         : "no job has run a prolog of gradcomp on this node, or staged, since it booted");
	return 0;
}

int cmd_prolog(int argc, char **argv)
{
	const char *job = NULL, *records = NULL;
	int plan = 0, mark = 0, status;
	const command_option options[] = {{"--plan", NULL, &plan},
	                                  {"--job", &job, NULL},
	                                  {"--check", NULL, &mark},
	                                  {"--records", &records, NULL},
	                                  {NULL, NULL, NULL}};
	gradcomp_error err;
	config *c;
	int64_t id = 0;
	status = command_take_options(argc, argv, usage, options, NULL, 0);
	if (status >= 0)
		return status;
	if (plan + mark + !!job != 1 || (records && !mark) || (job && (number_int(job, &id) != NUMBER_OK || id < 1)))
		return command_usage_error(usage, "prolog needs --plan, or --job and its number, or --check");
	if (mark)
		return look_for_mark(records ? records : PROLOG_RECORDS);
	command_catch_signals();
	if (config_load(NULL, &c, &err))
		return command_failed(&err);
	status = config_int(c, SET_STAGE_PROLOG) ? stage_shared(c, plan, id) : 0;
	config_free(c);
	return status;
}
