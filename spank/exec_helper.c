#include "spank/exec_helper.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/capability.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define LINE_BYTES 1000
#define LINES_MAX 200          /* those of stderr that are passed on */
#define FLOOD_BYTES (16 << 20) /* a child that runs as another user is stopped when it writes more */
#define GRACE 3.0              /* s between SIGTERM and SIGKILL, and from there until it is given up */
#define TICK_MS 100            /* how often to look whether a silent child has ended */

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

static int limit(int what, rlim_t most)
{
	struct rlimit l;
	if (getrlimit(what, &l) < 0)
		return -1;
	l.rlim_cur = l.rlim_max = l.rlim_max < most ? l.rlim_max : most;
	return setrlimit(what, &l);
}

/* Drops all of root's privileges but one capability, CAP_WAKE_ALARM, which is of no use to a
 * process without alarms. The kernel lets no process trace another, or take its descriptors
 * (ptrace, pidfd_getfd, /proc/PID/fd), that has a capability which it lacks itself. Without it
 * every process of the user could do so, and go on writing to the child's pipes for ever. An ambient
 * capability lasts through execve(), which makes the child dumpable again, so there is no
 * moment in which the child is exposed. If root itself lacks the capability, the child has none,
 * and only the limits of this file hold what the user can do to it. */
static int become(const exec_user *u)
{
	struct __user_cap_header_struct version = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct caps[2] = {{0}};
	if (setgroups((size_t)u->ngroups, u->groups) < 0 || setresgid(u->gid, u->gid, u->gid) < 0)
		return -1;
	if (u->uid == 0)
		return 0;
	if (prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0) < 0 || setresuid(u->uid, u->uid, u->uid) < 0)
		return -1;
	caps[CAP_TO_INDEX(CAP_WAKE_ALARM)].permitted = CAP_TO_MASK(CAP_WAKE_ALARM);
	caps[CAP_TO_INDEX(CAP_WAKE_ALARM)].inheritable = CAP_TO_MASK(CAP_WAKE_ALARM);
	if (syscall(SYS_capset, &version, caps) == 0)
		return prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_WAKE_ALARM, 0, 0) < 0 && errno != EPERM ? -1 : 0;
	memset(caps, 0, sizeof caps);
	return (int)syscall(SYS_capset, &version, caps);
}

static _Noreturn void child(const exec_helper *r, int out, int err, int status, pid_t parent)
{
	sigset_t none;
	for (int sig = 1; sig < NSIG; sig++)
		signal(sig, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	/* If any of this fails, nothing is run. */
	if (limit(RLIMIT_CORE, 0) < 0 || (r->memory && limit(RLIMIT_AS, r->memory) < 0) ||
	    (r->cpu && limit(RLIMIT_CPU, (rlim_t)r->cpu) < 0))
		goto fail;
	/* A child that keeps the user stays in this process group, by which Slurm may find what to
	 * kill. One that changes to another user gets a session of its own, to be killed as a whole. */
	if (r->user && (setsid() < 0 || become(r->user) < 0 || chdir("/") < 0))
		goto fail;
	/* The parent may have ended already. */
	if (prctl(PR_SET_PDEATHSIG, SIGTERM) < 0 || getppid() != parent)
		goto fail;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) < 0)
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

/* One child that is followed. */
typedef struct follower {
	exec_helper *r;
	pid_t pid;
	int out, status;    /* -1: at its end */
	reader err;         /* err.fd likewise */
	size_t have, bytes; /* bytes of stdout; of both */
	int code;           /* errno of a child that could not become the command */
	enum { IN_TIME, LATE, FLOODED, STUCK } fate;
} follower;

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

/* At most `most` bytes. Returns how many there were, 0 at the end of the stream or when it is
 * broken, -1 when there are none yet. */
static ssize_t receive(follower *f, int fd, char *buf, size_t most)
{
	ssize_t n = read(fd, buf, most);
	if (n < 0)
		return errno == EINTR || errno == EAGAIN ? -1 : 0;
	f->bytes += (size_t)n;
	return n;
}

static ssize_t read_lines(follower *f, size_t most)
{
	char buf[512];
	reader *in = &f->err;
	ssize_t n = receive(f, in->fd, buf, most < sizeof buf ? most : sizeof buf);
	for (ssize_t i = 0; i < n; i++) {
		if (buf[i] == '\n' || buf[i] == '\r' || in->n == sizeof in->text - 1)
			pass_line(f->r, in, buf[i]);
		if (buf[i] != '\n' && buf[i] != '\r')
			in->text[in->n++] = buf[i];
	}
	if (n == 0)
		in->fd = -1;
	return n;
}

static ssize_t read_output(follower *f, size_t most)
{
	char buf[512];
	ssize_t n = receive(f, f->out, buf, most < sizeof buf ? most : sizeof buf);
	for (ssize_t i = 0; i < n; i++, f->have++)
		if (f->have < sizeof f->r->output)
			f->r->output[f->have] = buf[i];
	if (n == 0)
		f->out = -1;
	return n;
}

static void read_status(follower *f)
{
	int code;
	ssize_t n = read(f->status, &code, sizeof code);
	if (n == (ssize_t)sizeof code)
		f->code = code;
	if (n >= 0 || (errno != EINTR && errno != EAGAIN))
		f->status = -1;
}

static size_t waiting(int fd)
{
	int n = 0;
	return fd >= 0 && ioctl(fd, FIONREAD, &n) == 0 && n > 0 ? (size_t)n : 0;
}

/* Reads what the child wrote before it ended and left in the pipes, and no more: another process may have the other
 * ends, and go on writing. */
static void read_rest(follower *f)
{
	ssize_t n;
	if (f->status >= 0)
		read_status(f);
	for (size_t left = waiting(f->out); left > 0 && (n = read_output(f, left)) > 0;)
		left -= (size_t)n;
	for (size_t left = waiting(f->err.fd); left > 0 && (n = read_lines(f, left)) > 0;)
		left -= (size_t)n;
	if (f->err.n)
		pass_line(f->r, &f->err, '\n');
	f->r->output[f->have < sizeof f->r->output ? f->have : 0] = 0;
}

static void stop(const follower *f, int sig)
{
	kill(f->pid, sig);
	if (f->r->user)
		kill(-f->pid, sig);
}

/* Reads the child's output until it has ended, or time is up. Returns its wait status,
 * or -1 with errno. */
static int follow(follower *f)
{
	const exec_helper *r = f->r;
	double deadline = r->timeout ? now() + r->timeout : 0;
	int sent = 0, wstatus = 0;
	for (;;) {
		struct pollfd fds[] = {{.fd = f->out, .events = POLLIN},
		                       {.fd = f->err.fd, .events = POLLIN},
		                       {.fd = f->status, .events = POLLIN}};
		siginfo_t end = {.si_pid = 0};
		if (poll(fds, 3, f->out >= 0 || f->err.fd >= 0 ? TICK_MS : 10) < 0 && errno != EINTR)
			return -1;
		if (fds[0].revents)
			read_output(f, SIZE_MAX);
		if (fds[1].revents)
			read_lines(f, SIZE_MAX);
		if (fds[2].revents)
			read_status(f);
		/* It is left unreaped, so that its number stays that of its session. */
		if (waitid(P_PID, (id_t)f->pid, &end, WEXITED | WNOHANG | WNOWAIT) < 0 && errno != EINTR)
			return -1;
		if (end.si_pid)
			break;
		if (f->fate == IN_TIME && r->user && f->bytes > FLOOD_BYTES) {
			f->fate = FLOODED;
			deadline = now();
		}
		if (deadline == 0 || now() < deadline)
			continue;
		if (sent == SIGKILL) {
			f->fate = STUCK;
			return -1;
		}
		if (f->fate == IN_TIME)
			f->fate = LATE;
		sent = sent || r->kill_at_timeout || f->fate == FLOODED ? SIGKILL : SIGTERM;
		stop(f, sent);
		deadline = now() + GRACE;
	}
	if (r->user)
		kill(-f->pid, SIGKILL);
	while (waitpid(f->pid, &wstatus, 0) < 0)
		if (errno != EINTR)
			return -1;
	return wstatus;
}

int exec_helper_run(exec_helper *r, char *why, size_t size)
{
	int out[2] = {-1, -1}, err[2] = {-1, -1}, status[2] = {-1, -1}, result = -1;
	const char *command = r->argv[0];
	r->output[0] = 0;
	/* Another process may have a descriptor of the same pipe, and read it empty before us. */
	if (pipe2(out, O_CLOEXEC) < 0 || pipe2(err, O_CLOEXEC) < 0 || pipe2(status, O_CLOEXEC) < 0 ||
	    fcntl(out[0], F_SETFL, O_NONBLOCK) < 0 || fcntl(err[0], F_SETFL, O_NONBLOCK) < 0 ||
	    fcntl(status[0], F_SETFL, O_NONBLOCK) < 0) {
		snprintf(why, size, "cannot make a pipe: %s", strerror(errno));
		goto done;
	}
	pid_t parent = getpid();
	follower f = {.r = r, .out = out[0], .err = {.fd = err[0]}, .status = status[0], .pid = fork()};
	if (f.pid < 0) {
		snprintf(why, size, "cannot fork: %s", strerror(errno));
		goto done;
	}
	if (f.pid == 0)
		child(r, out[1], err[1], status[1], parent);
	close(out[1]), close(err[1]), close(status[1]);
	out[1] = err[1] = status[1] = -1;

	int wstatus = follow(&f), e = errno;
	read_rest(&f);
	if (f.code)
		snprintf(why, size, "cannot run %s: %s", command, strerror(f.code));
	else if (f.fate == LATE)
		snprintf(why, size, "%s did not end within %d s and was stopped", command, r->timeout);
	else if (f.fate == FLOODED)
		snprintf(why, size, "%s wrote more than %d MiB and was stopped", command, FLOOD_BYTES >> 20);
	else if (f.fate == STUCK)
		snprintf(why, size, "%s (process %ld) does not end, not even when it is killed: left behind", command,
		         (long)f.pid);
	else if (wstatus < 0)
		snprintf(why, size, "lost track of %s: %s", command, strerror(e));
	else if (r->show_output && WIFSIGNALED(wstatus) && WTERMSIG(wstatus) == SIGPIPE)
		result = 0; /* the reader has seen enough, as head does */
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
