#include "spank/stage_task.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "spank/stage_rendezvous.h"
#include "spank/exec_helper.h"
#include "spank/spank_log.h"

#define KEPT 8 /* last lines of a node, which are logged only if it fails */
#define ENV_MAX 64
#define ANOTHER_NODE 3            /* the command's exit status when another node failed */
#define REWRITE "\033[A\033[2K\r" /* the line above, on srun's terminal */

typedef struct progress {
	bool logs;    /* on the step's first node, which logs for all while nothing fails */
	bool rewrite; /* the last line was of progress: the next one replaces it */
	int count;
	char host[65];
	char kept[KEPT][400];
} progress;

static void on_line(void *ctx, const char *line, bool passing)
{
	progress *n = ctx;
	if (n->logs) {
		/* Slurm forwards complete lines only: each is written over the one above. */
		log_rewrite(n->rewrite ? REWRITE : "", "%s: %s", n->host, line);
		n->rewrite = passing;
	} else if (!passing) {
		snprintf(n->kept[n->count++ % KEPT], sizeof n->kept[0], "%s", line);
	}
}

static void log_kept(const progress *n)
{
	for (int i = n->count > KEPT ? n->count - KEPT : 0; i < n->count; i++)
		log_info("%s: %s", n->host, n->kept[i % KEPT]);
}

/* A small environment: of the user's only what gradcomp and the libc look at. `keep` and
 * the strings in `job` and `rv` outlive the result. */
static void environment(char **job, const arguments *args, const stage_rendezvous *rv, char *keep, size_t size,
                        char **env)
{
	static const char *const names[] = {"GRADCOMP",
	                                    "HOME=",
	                                    "USER=",
	                                    "LOGNAME=",
	                                    "LANG=",
	                                    "LC_ALL=",
	                                    "TZ=",
	                                    "TMPDIR=",
	                                    "SLURM_JOB_ID=",
	                                    "SLURM_STEP_ID=",
	                                    "SLURM_STEP_NODELIST="};
	const char *const ours[] = {rv->where, rv->token, rv->rank, rv->ranks};
	int n = 0;
	bool conf = false;
	env[n++] = "PATH=/usr/local/bin:/usr/bin:/bin";
	for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
		if (*ours[i])
			env[n++] = (char *)ours[i];
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

/* The first task hands these to the others: lines NAME=VALUE, none when it failed. They are complete when the pipe
 * is at its end; only the first task has its writing end. */
static struct {
	char *lines;
	int pipe[2];
	stage_rendezvous rendezvous;
} shared = {NULL, {-1, -1}, {.node = 0}};

int stage_task_prepare(spank_t sp, char *why, size_t size)
{
	stage_rendezvous_take(sp, &shared.rendezvous);
	shared.lines = mmap(NULL, EXEC_OUTPUT_BYTES + 1, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (shared.lines == MAP_FAILED || pipe2(shared.pipe, O_CLOEXEC) < 0) {
		snprintf(why, size, "--gradcomp-stage: %s", strerror(errno));
		return -1;
	}
	return 0;
}

void stage_task_forked(void)
{
	if (shared.pipe[1] >= 0)
		close(shared.pipe[1]);
	shared.pipe[1] = -1;
}

/* The next line of *text, whose newline becomes a 0; its value. NULL: there is none,
 * or it is not about a copy. */
static char *next_copy(char **text, char **name)
{
	char *line = *text, *end = strchr(line, '\n'), *value = strchr(line, '=');
	if (!end || !value || value > end || strncmp(line, "GRADCOMP_DATA", 13))
		return NULL;
	*end = *value = 0;
	*text = end + 1;
	*name = line;
	return value + 1;
}

static bool is_list_of_copies(const char *lines)
{
	static char copy[EXEC_OUTPUT_BYTES + 1];
	char *at = copy, *name, *value;
	int n = 0;
	strcpy(copy, lines);
	for (; *at; n++) {
		value = next_copy(&at, &name);
		if (!value || (*value != '/' && !strstr(name, "_SHARD")))
			return false;
	}
	return n > 0;
}

/* Runs the command; the copies that it prints go to `lines`. */
static int copy(spank_t sp, const char *spec, const arguments *args, char *lines, char *why, size_t size)
{
	static exec_helper r;
	char conf[PATH_MAX + 32], reason[512], stepd[24], holder[64], columns[16], *env[ENV_MAX], **job = NULL;
	char *argv[16] = {(char *)args->helper, "stage", "--env", "--hold", stepd, "--holder", holder};
	const stage_rendezvous *rv = &shared.rendezvous;
	progress p = {0};
	uint32_t id = 0, step = 0;
	int n = 7;
	p.logs = rv->node == 0;
	gethostname(p.host, sizeof p.host - 1);
	spank_get_item(sp, S_JOB_ID, &id);
	spank_get_item(sp, S_JOB_STEPID, &step);
	spank_get_item(sp, S_JOB_ENV, &job);
	snprintf(stepd, sizeof stepd, "%ld", (long)getppid());
	snprintf(holder, sizeof holder, "job %u.%u", (unsigned)id, (unsigned)step);
	if (rv->nodes > 1)
		argv[n++] = "--rendezvous";
	if (rv->live > 0 && rv->node == 0) {
		/* "gradcomp: " is the command's prefix and ours. */
		int left = rv->live - (int)strlen(p.host) - 2;
		snprintf(columns, sizeof columns, "%d", left > 1 ? left : 1);
		argv[n++] = "--live";
		argv[n++] = columns;
	}
	argv[n++] = "--";
	argv[n++] = (char *)spec;
	environment(job, args, rv, conf, sizeof conf, env);
	r = (exec_helper){.argv = argv, .env = env, .timeout = args->stage_timeout, .line = on_line, .ctx = &p};

	int status = exec_helper_run(&r, reason, sizeof reason);
	if (status == 0 && is_list_of_copies(r.output)) {
		strcpy(lines, r.output);
		return 0;
	}
	/* The node that failed is to end first: under --kill-on-bad-exit the first task that
	 * ends takes all others with it, before they have printed why. Slurm leaves no event
	 * to wait for: slurmstepds do not know each other, srun tells none of them that a task
	 * of another node has ended, and gradcomp's own connections end with the command, before
	 * the task does. With --kill-on-bad-exit the wait ends when srun kills this task. */
	if (status == ANOTHER_NODE)
		sleep(1);
	/* One of them has printed why: a thousand nodes need not. */
	if (status == ANOTHER_NODE && rv->node != 0)
		return -1;
	if (status >= 0)
		snprintf(reason, sizeof reason,
		         status ? "%.300s ended with status %d" : "%.300s printed no path of a copy", args->helper,
		         status);
	log_kept(&p);
	/* On a terminal the next line of progress is written over the empty one. */
	snprintf(why, size, "%s: --gradcomp-stage=%.200s failed: %.200s%s", p.host, spec, reason, rv->live ? "\n" : "");
	return -1;
}

int stage_task_run(spank_t sp, const char *spec, const arguments *args, char *why, size_t size)
{
	char *at = shared.lines, *name, *value;
	int task = -1;
	spank_get_item(sp, S_TASK_ID, &task);
	if (task == 0) {
		/* The writing end stays open until this process becomes the program, or dies. */
		if (copy(sp, spec, args, shared.lines, why, size) < 0)
			return -1;
	} else {
		char none;
		stage_task_forked();
		while (read(shared.pipe[0], &none, 1) < 0 && errno == EINTR)
			;
		if (!shared.lines[0])
			return -1;
	}
	/* The others read the same memory: each task parses a copy of its own. */
	char *lines = strdup(at);
	for (at = lines; at && *at && (value = next_copy(&at, &name));)
		if (spank_setenv(sp, name, value, 1) != ESPANK_SUCCESS)
			break;
	bool done = at && !*at;
	free(lines);
	if (done)
		return 0;
	snprintf(why, size, "cannot set GRADCOMP_DATA");
	return -1;
}
