#include "job/job_comment.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/error.h"
#include "job/site_usage.h"

#define SECONDS 5.0 /* for both commands: Slurm's would go on asking a controller that is away for minutes */
#define REAP_MS 10

static const char *number_in(const char *variable)
{
	const char *v = getenv(variable);
	return v && *v && strlen(v) <= 20 && !v[strspn(v, "0123456789")] ? v : NULL;
}

/* Finds the number that Slurm gives this job and no other: of an array's task the number may be the array's. False
 * outside of Slurm, and for a heterogeneous job, whose number is all its components'. */
static bool job_name(char out[48])
{
	const char *job = number_in("SLURM_JOB_ID"), *array = number_in("SLURM_ARRAY_JOB_ID"),
		   *task = number_in("SLURM_ARRAY_TASK_ID");
	if (array && task)
		snprintf(out, 48, "%s_%s", array, task);
	else if (job)
		snprintf(out, 48, "%s", job);
	return job && !getenv("SLURM_HET_SIZE");
}

static void put_bytes(FILE *f, double bytes)
{
	static const char *const unit[] = {"kB", "MB", "GB", "TB"};
	size_t u = 0;
	for (bytes /= 1e3; bytes >= 1e3 && u < 3; u++)
		bytes /= 1e3;
	fprintf(f, "%.1f %s", bytes, unit[u]);
}

bool job_comment_line(const report_job *job, char out[JOB_COMMENT_LINE])
{
	const char *asked = "";
	double most = -1;
	char name[48];
	site_usage u;
	FILE *f;
	if (job->nranks < 2 || !job_name(name) || !site_usage_of_job(job, &u))
		return false;
	for (uint32_t i = 0; i < job->nreducers; i++)
		if (job->reducers[i].stats.dense_bytes > most) {
			most = job->reducers[i].stats.dense_bytes;
			asked = job->reducers[i].asked;
		}
	for (uint32_t i = 0; i < job->ncoders; i++)
		if (job->coders[i].stats.dense_bytes > most) {
			most = job->coders[i].stats.dense_bytes;
			asked = job->coders[i].asked;
		}
	f = fmemopen(memset(out, 0, JOB_COMMENT_LINE), JOB_COMMENT_LINE - 1, "w");
	if (!f)
		return false;
	fprintf(f, "gradcomp: %.100s, ", asked);
	put_bytes(f, (double)u.wire_bytes);
	fputs(" sent instead of ", f);
	put_bytes(f, (double)u.dense_bytes);
	fprintf(f, ", %llu step%s%s", (unsigned long long)u.steps, u.steps == 1 ? "" : "s",
	        job->failure ? ", failed" : "");
	fclose(f);
	for (char *c = out; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	return true;
}

/* The child with its output and what it says of errors in `to`. 0, or an error number. */
static int spawn(const char *const *argv, int to, pid_t *pid)
{
	posix_spawn_file_actions_t files;
	posix_spawnattr_t how;
	sigset_t none, all;
	int failed;
	sigemptyset(&none);
	sigfillset(&all);
	failed = posix_spawn_file_actions_init(&files);
	if (failed)
		return failed;
	failed = posix_spawnattr_init(&how);
	if (failed) {
		posix_spawn_file_actions_destroy(&files);
		return failed;
	}
	/* Slurm's command is not to inherit what the program has made of signals. */
	posix_spawnattr_setsigmask(&how, &none);
	posix_spawnattr_setsigdefault(&how, &all);
	posix_spawnattr_setflags(&how, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
	failed = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	failed = failed ? failed : posix_spawn_file_actions_adddup2(&files, to, 1);
	failed = failed ? failed : posix_spawn_file_actions_adddup2(&files, to, 2);
	failed = failed ? failed : posix_spawnp(pid, argv[0], &files, &how, (char *const *)(uintptr_t)argv, environ);
	posix_spawnattr_destroy(&how);
	posix_spawn_file_actions_destroy(&files);
	return failed;
}

/* Its exit status; -1 when it has not ended by itself in time, or a program that ignores SIGCHLD or reaps all children
 * has left none to learn. */
static int reap(pid_t pid, bool in_time)
{
	int status = 0;
	if (!in_time)
		kill(pid, SIGKILL);
	for (int waited = 0; waited < 1000; waited += REAP_MS) {
		pid_t got = waitpid(pid, &status, WNOHANG);

		if (got < 0 && errno != EINTR)
			return -1;
		if (got == pid)
			return in_time && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
		poll(NULL, 0, REAP_MS);
	}
	return -1;
}

/* Runs a command and reads what it says, without its last newline: more than `room` holds is an error. */
static gradcomp_status run(const char *const *argv, double until, char *out, size_t room, gradcomp_error *err)
{
	int ends[2], failed, status;
	ssize_t got = -1;
	size_t n = 0;
	pid_t pid;
	*out = '\0';
	if (pipe2(ends, O_CLOEXEC))
		return error_errno(err, GRADCOMP_ERR_IO, "no pipe to %s", argv[0]);
	failed = spawn(argv, ends[1], &pid);
	close(ends[1]);
	if (failed) {
		close(ends[0]);
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "cannot run %s: %s", argv[0], strerror(failed));
	}
	while (n < room - 1) {
		struct pollfd p = {.fd = ends[0], .events = POLLIN};
		double left = until - clock_now();

		if (left <= 0)
			break;
		if (poll(&p, 1, (int)(left * 1e3) + 1) <= 0)
			continue;
		got = read(ends[0], out + n, room - 1 - n);
		if (got <= 0 && !(got < 0 && errno == EINTR))
			break;
		n += got > 0 ? (size_t)got : 0;
		got = -1;
	}
	close(ends[0]);
	out[n] = '\0';
	status = reap(pid, got == 0);
	if (n && out[n - 1] == '\n')
		out[n - 1] = '\0';
	if (n == room - 1)
		return error_set(err, GRADCOMP_ERR_RANGE, "%s says more than %zu bytes", argv[0], room - 1);
	if (got)
		return error_set(err, GRADCOMP_ERR_TIMEOUT, "%s does not answer within %.0f s", argv[0], SECONDS);
	if (status)
		return error_set(err, GRADCOMP_ERR_IO, "%s: %.150s", argv[0], *out ? out : "no reason given");
	return GRADCOMP_OK;
}

gradcomp_status job_comment_leave(const char *line, gradcomp_error *err)
{
	char id[48] = "", job[60], said[JOB_COMMENT_MAX + 2],
	     comment[sizeof "Comment=" + JOB_COMMENT_MAX + JOB_COMMENT_LINE + 2];
	const char *squeue[] = {"squeue", "-h", "-j", id, "-o", "%k", NULL};
	const char *scontrol[] = {"scontrol", "update", job, comment, NULL};
	double until = clock_now() + SECONDS;
	gradcomp_status st;
	if (!job_name(id))
		return error_set(err, GRADCOMP_ERR_STATE, "this is no job of Slurm, or a heterogeneous one");
	st = run(squeue, until, said, sizeof said, err);
	if (st)
		return st;
	if (!strcmp(said, "(null)"))
		*said = '\0';
	if (strlen(said) + 2 + strlen(line) > JOB_COMMENT_MAX)
		return error_set(err, GRADCOMP_ERR_RANGE,
		                 "the job's comment has %zu bytes, and is left alone: it may have %d", strlen(said),
		                 JOB_COMMENT_MAX);
	snprintf(job, sizeof job, "JobId=%s", id);
	snprintf(comment, sizeof comment, "Comment=%s%s%s", said, *said ? "; " : "", line);
	return run(scontrol, until, said, sizeof said, err);
}
