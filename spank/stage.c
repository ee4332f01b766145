#include "stage.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
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

/* A small environment: of the user's only what gradcomp and the libc look at. `keep` and the strings in `job` outlive the result. */
static void environment(char **job, const arguments *args, char *keep, size_t size, char **env)
{
	static const char *const names[] = {"GRADCOMP", "HOME=", "USER=",   "LOGNAME=",      "LANG=",
	                                    "LC_ALL=",  "TZ=",   "TMPDIR=", "SLURM_JOB_ID=", "SLURM_STEP_ID="};
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

/* What the first task tells the others: the path, "" when it failed; the end of
 * the pipe, of which the first task alone holds the writing end, says when. */
static struct {
	char *path;
	int pipe[2];
} shared = {NULL, {-1, -1}};

int stage_prepare(char *why, size_t size)
{
	shared.path = mmap(NULL, PATH_MAX + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared.path == MAP_FAILED || pipe2(shared.pipe, O_CLOEXEC) < 0) {
		snprintf(why, size, "--gradcomp-stage: %s", strerror(errno));
		return -1;
	}
	return 0;
}

void stage_forked(void)
{
	if (shared.pipe[1] >= 0)
		close(shared.pipe[1]);
	shared.pipe[1] = -1;
}

/* Runs the command; the path goes to `path`. */
static int copy(spank_t sp, const char *dir, const arguments *args, char *path, char *why, size_t size)
{
	char full[PATH_MAX], conf[PATH_MAX + 32], reason[512], *env[ENV_MAX], **job = NULL;
	char *argv[] = {(char *)args->helper, "stage", full, NULL};
	news news = {0};
	uint32_t node = 0;
	run r = {.argv = argv, .env = env, .timeout = args->stage_timeout, .line = on_line, .ctx = &news};

	if (absolute(dir, full, sizeof full, why, size) < 0)
		return -1;
	spank_get_item(sp, S_JOB_NODEID, &node);
	spank_get_item(sp, S_JOB_ENV, &job);
	news.live = node == 0;
	gethostname(news.host, sizeof news.host - 1);
	environment(job, args, conf, sizeof conf, env);

	int status = run_command(&r, reason, sizeof reason);
	if (status == 0 && r.output[0] == '/') {
		strcpy(path, r.output);
		return 0;
	}
	if (status >= 0)
		snprintf(reason, sizeof reason,
		         status ? "%.300s ended with status %d" : "%.300s printed no absolute path", args->helper,
		         status);
	tell(&news);
	snprintf(why, size, "%s: --gradcomp-stage=%.200s failed: %.200s", news.host, dir, reason);
	return -1;
}

int stage_task(spank_t sp, const char *dir, const arguments *args, char *why, size_t size)
{
	int task = -1;

	spank_get_item(sp, S_TASK_ID, &task);
	if (task == 0) {
		/* The writing end stays open until this process becomes the program, or dies. */
		if (copy(sp, dir, args, shared.path, why, size) < 0)
			return -1;
	} else {
		char none;
		stage_forked();
		while (read(shared.pipe[0], &none, 1) < 0 && errno == EINTR)
			;
		if (!shared.path[0])
			return -1;
	}
	if (spank_setenv(sp, "GRADCOMP_DATA", shared.path, 1) == ESPANK_SUCCESS)
		return 0;
	snprintf(why, size, "cannot set GRADCOMP_DATA");
	return -1;
}
