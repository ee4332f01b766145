#include "stage.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "run.h"
#include "say.h"

#define KEPT 8 /* last lines of a node that is not to speak unless it fails */
#define ENV_MAX 64

typedef struct news {
	int live; /* the job's first node speaks for all while it goes well */
	int count;
	char host[65];
	char kept[KEPT][400];
} news;

static void on_line(void *ctx, const char *line)
{
	news *n = ctx;
	if (n->live)
		say("%s: %s", n->host, line);
	else
		snprintf(n->kept[n->count++ % KEPT], sizeof n->kept[0], "%s", line);
}

static void tell(const news *n)
{
	for (int i = n->count > KEPT ? n->count - KEPT : 0; i < n->count; i++)
		say("%s: %s", n->host, n->kept[i % KEPT]);
}

/* A small environment: nothing of root's, and of the user's only what gradcomp
 * and the libc look at. `keep` and the strings in `job` outlive the result. */
static void environment(char **job, const arguments *args, char *keep, size_t size, char **env)
{
	static const char *const names[] = {
		"GRADCOMP", "HOME=", "USER=", "LOGNAME=", "LANG=", "LC_ALL=", "TZ=", "TMPDIR=",
		"SLURM_JOB_ID=", "SLURM_STEP_ID="
	};
	int n = 0, conf = 0;

	env[n++] = "PATH=/usr/local/bin:/usr/bin:/bin";
	for (; job && *job && n < ENV_MAX - 2; job++) {
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (!strncmp(*job, names[i], strlen(names[i]))) {
				conf |= !strncmp(*job, "GRADCOMP_CONF=", 14);
				env[n++] = *job;
				break;
			}
	}
	if (args->conf[0] && !conf) {
		snprintf(keep, size, "GRADCOMP_CONF=%s", args->conf);
		env[n++] = keep;
	}
	env[n] = NULL;
}

static int absolute(const char *dir, char *full, size_t size, char *why, size_t why_size)
{
	char here[PATH_MAX] = "";

	if (*dir != '/' && !getcwd(here, sizeof here)) {
		snprintf(why, why_size, "--gradcomp-stage=%s: the working directory is gone", dir);
		return -1;
	}
	int n = snprintf(full, size, "%s%s%s", strcmp(here, "/") ? here : "", *dir == '/' ? "" : "/", dir);
	if (n < 0 || (size_t)n >= size) {
		snprintf(why, why_size, "--gradcomp-stage=%.200s...: the path is too long", dir);
		return -1;
	}
	return 0;
}

/* Whose the job is. */
static int find_user(spank_t sp, run_user *u, char *why, size_t size)
{
	gid_t *groups = NULL;
	int ngroups = 0;

	if (spank_get_item(sp, S_JOB_UID, &u->uid) != ESPANK_SUCCESS ||
	    spank_get_item(sp, S_JOB_GID, &u->gid) != ESPANK_SUCCESS) {
		snprintf(why, size, "Slurm does not say whose job this is");
		return -1;
	}
	if (spank_get_item(sp, S_JOB_SUPPLEMENTARY_GIDS, &groups, &ngroups) == ESPANK_SUCCESS && ngroups > 0) {
		u->groups = groups;
		u->ngroups = (size_t)ngroups;
	} else {
		u->groups = &u->gid;
		u->ngroups = 1;
	}
	return 0;
}

int stage(spank_t sp, const char *dir, const arguments *args, char *why, size_t size)
{
	char full[PATH_MAX], conf[PATH_MAX + 32], reason[512], *env[ENV_MAX], **job = NULL;
	char *argv[] = { (char *)args->helper, "stage", full, NULL };
	news news = { 0 };
	run_user user;
	uint32_t node = 0;
	run r = { .argv = argv, .env = env, .user = &user, .timeout = args->stage_timeout, .line = on_line,
		  .ctx = &news };

	if (absolute(dir, full, sizeof full, why, size) < 0 || find_user(sp, &user, why, size) < 0)
		return -1;
	spank_get_item(sp, S_JOB_NODEID, &node);
	spank_get_item(sp, S_JOB_ENV, &job);
	news.live = node == 0;
	gethostname(news.host, sizeof news.host - 1);
	environment(job, args, conf, sizeof conf, env);

	int status = run_command(&r, reason, sizeof reason);
	if (status == 0 && r.output[0] == '/') {
		if (spank_setenv(sp, "GRADCOMP_DATA", r.output, 1) == ESPANK_SUCCESS)
			return 0;
		snprintf(reason, sizeof reason, "cannot set GRADCOMP_DATA");
	} else if (status == 0) {
		snprintf(reason, sizeof reason, "%.300s printed no absolute path", args->helper);
	} else if (status > 0) {
		snprintf(reason, sizeof reason, "%.300s ended with status %d", args->helper, status);
	}
	tell(&news);
	snprintf(why, size, "%s: --gradcomp-stage=%.200s failed: %.200s", news.host, dir, reason);
	return -1;
}
