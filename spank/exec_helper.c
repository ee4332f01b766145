#include "spank/exec_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1000
#define LINES_MAX 200 /* of stderr that are passed on */
#define GRACE 3.0     /* s between SIGTERM and SIGKILL */
#define TICK_MS 100   /* how often to look whether a silent child has ended */

/* ---- in the child, between fork and exec: no malloc, no stdio ------------- */

static void close_from(int low)
{
#ifdef SYS_close_range
	if (syscall(SYS_close_range, low, ~0u, 0) == 0)
		return;
#endif
	long n = sysconf(_SC_OPEN_MAX);
	for (int fd = low; fd < (n < 0 || n > 65536 ? 65536 : n); fd++)
		close(fd);
}

static _Noreturn void child(const exec_helper *r, int out, int err, int status, pid_t parent)
{
	struct rlimit no_core = {0, 0};
	sigset_t none;

	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* All that root has goes with the user id; what fails here must not run. */
	if (r->user && (setgroups((size_t)r->user->ngroups, r->user->groups) < 0 ||
	                setresgid(r->user->gid, r->user->gid, r->user->gid) < 0 ||
	                setresuid(r->user->uid, r->user->uid, r->user->uid) < 0 || chdir("/") < 0))
		goto fail;
	/* Stays in its parent's process group, by which Slurm may find what to kill.
	 * The parent may be gone already. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
		goto fail;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0 || setrlimit(RLIMIT_CORE, &no_core) < 0)
		goto fail;
	int in = r->in ? r->in : open("/dev/null", O_RDONLY);
	if (in < 0 || dup2(in, 0) < 0 || (!r->show_output && dup2(out, 1) < 0) || dup2(err, 2) < 0 ||
	    dup2(status, 3) < 0 || fcntl(3, F_SETFD, FD_CLOEXEC) < 0)
		goto fail;
	status = 3;
	close_from(4);
	execve(r->argv[0], r->argv, r->env);
fail:;
	int code = errno;
	(void)!write(status, &code, sizeof code);
	_exit(127);
}

/* ---- in the parent ---------------------------------------------------------- */

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct reader {
	int fd, lines;
	size_t n;
	char text[LINE_BYTES];
} reader;

static void pass_line(exec_helper *r, reader *in, char end)
{
	in->text[in->n] = 0;
	in->n = 0;
	for (char *c = in->text; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = ' ';
	char *text = strncmp(in->text, "gradcomp: ", 10) ? in->text : in->text + 10;
	if (*text && (end == '\r' || in->lines++ < LINES_MAX) && r->line)
		r->line(r->ctx, text, end == '\r');
}

/* Returns 0 at the end of the stream. */
static int read_lines(exec_helper *r, reader *in)
{
	char buf[512];
	ssize_t n = read(in->fd, buf, sizeof buf);
	if (n < 0)
		return errno == EINTR || errno == EAGAIN;
	for (ssize_t i = 0; i < n; i++) {
		if (buf[i] == '\n' || buf[i] == '\r' || in->n == sizeof in->text - 1)
			pass_line(r, in, buf[i]);
		if (buf[i] != '\n' && buf[i] != '\r')
			in->text[in->n++] = buf[i];
	}
	if (n == 0 && in->n)
		pass_line(r, in, '\n');
	return n != 0;
}

static int read_output(exec_helper *r, int fd, size_t *have)
{
	char buf[512];
	ssize_t n = read(fd, buf, sizeof buf);
	if (n < 0)
		return errno == EINTR || errno == EAGAIN;
	for (ssize_t i = 0; i < n; i++, ++*have)
		if (*have < sizeof r->output)
			r->output[*have] = buf[i];
	return n != 0;
}

/* Follows the child until it has ended, or time is up. Returns its wait status,
 * or -1 with errno. */
static int follow(exec_helper *r, pid_t pid, int out, int err)
{
	reader lines = {.fd = err};
	struct pollfd fds[2] = {{.fd = out, .events = POLLIN}, {.fd = err, .events = POLLIN}};
	double deadline = r->timeout ? now() + r->timeout : 0;
	size_t have = 0;
	int wstatus = 0, late = 0, ended = 0;

	for (;;) {
		int open_fds = (fds[0].fd >= 0) + (fds[1].fd >= 0);
		/* A grandchild may hold the pipes after the child has gone: what has
		 * arrived by then is all there is. */
		int n = poll(fds, 2, ended ? 0 : open_fds ? TICK_MS : 10);
		if (n < 0 && errno != EINTR)
			return -1;
		if (n > 0) {
			if (fds[0].revents && !read_output(r, out, &have))
				fds[0].fd = -1;
			if (fds[1].revents && !read_lines(r, &lines))
				fds[1].fd = -1;
		} else if (ended) {
			break;
		}
		if (!ended) {
			pid_t w = waitpid(pid, &wstatus, WNOHANG);
			if (w < 0 && errno != EINTR)
				return -1;
			ended = w == pid;
		}
		if (!ended && deadline > 0 && now() > deadline) {
			kill(pid, late || r->abandon ? SIGKILL : SIGTERM);
			late = 1;
			deadline = now() + GRACE;
		}
	}
	r->output[have < sizeof r->output ? have : 0] = 0;
	errno = late ? ETIMEDOUT : 0;
	return late ? -1 : wstatus;
}

int exec_helper_run(exec_helper *r, char *why, size_t size)
{
	int out[2] = {-1, -1}, err[2] = {-1, -1}, status[2] = {-1, -1}, result = -1, code;
	const char *command = r->argv[0];

	r->output[0] = 0;
	if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || pipe2(status, O_CLOEXEC) < 0) {
		snprintf(why, size, "cannot make a pipe: %s", strerror(errno));
		goto done;
	}
	pid_t parent = getpid(), pid = fork();
	if (pid < 0) {
		snprintf(why, size, "cannot fork: %s", strerror(errno));
		goto done;
	}
	if (pid == 0)
		child(r, out[1], err[1], status[1], parent);
	close(out[1]), close(err[1]), close(status[1]);
	out[1] = err[1] = status[1] = -1;

	ssize_t n;
	do
		n = read(status[0], &code, sizeof code);
	while (n < 0 && errno == EINTR);
	int wstatus = follow(r, pid, out[0], err[0]);
	if (n == (ssize_t)sizeof code)
		snprintf(why, size, "cannot run %s: %s", command, strerror(code));
	else if (wstatus < 0 && errno == ETIMEDOUT)
		snprintf(why, size, "%s did not end within %d s and was stopped", command, r->timeout);
	else if (wstatus < 0)
		snprintf(why, size, "lost track of %s: %s", command, strerror(errno));
	else if (WIFSIGNALED(wstatus))
		snprintf(why, size, "%s was killed by signal %d (%s)", command, WTERMSIG(wstatus),
		         strsignal(WTERMSIG(wstatus)));
	else
		result = WEXITSTATUS(wstatus);
done:
	for (int i = 0; i < 2; i++) {
		if (out[i] >= 0)
			close(out[i]);
		if (err[i] >= 0)
			close(err[i]);
		if (status[i] >= 0)
			close(status[i]);
	}
	return result;
}
