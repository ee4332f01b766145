#include "tools/run_agent.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/number.h"

#define STRINGS_MAX 4096
#define TEXT_MAX (1 << 20)
#define GRACE 5.0 /* seconds from the first failure, or the end of the command, to SIGKILL */

static void start_rank(const run_share *s, int i, pid_t agent, const sigset_t *old)
{
	char text[16];
	int null = open("/dev/null", O_RDONLY);

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != agent)
		_exit(1);
	setpgid(0, 0);
	dup2(null, 0);
	for (char **v = s->env; *v; v++)
		putenv(*v);
	snprintf(text, sizeof text, "%d", s->first + i);
	setenv("RANK", text, 1);
	snprintf(text, sizeof text, "%d", i);
	setenv("LOCAL_RANK", text, 1);
	snprintf(text, sizeof text, "%d", s->count);
	setenv("LOCAL_WORLD_SIZE", text, 1);
	sigprocmask(SIG_SETMASK, old, NULL);
	execvp(s->argv[0], s->argv);
	int code = errno == ENOENT ? 127 : 126;
	if (i == 0)
		fprintf(stderr, "gradcomp: %s on %s cannot be run: %s\n", s->argv[0], s->host, strerror(errno));
	_exit(code);
}

static void signal_all(const pid_t *group, int n, int signal_number)
{
	for (int i = 0; i < n; i++)
		if (group[i] > 0)
			kill(-group[i], signal_number);
}

/* Asks the ranks to end, once; *limit is when those that have not are killed, 0 before. */
static void end_all(const pid_t *group, int n, double *limit)
{
	if (*limit > 0)
		return;
	signal_all(group, n, SIGTERM);
	*limit = clock_now() + GRACE;
}

int run_status_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Of the ranks that have ended by now a signal's victim is the culprit before those that only
 * noticed. -1: no rank has failed. */
static int reap(pid_t *live, int n, int *left, int *well, int *culprit_status)
{
	int culprit = -1, status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < n; i++)
			if (live[i] == pid) {
				live[i] = 0;
				(*left)--;
				*well += !status;
				if (status && (culprit < 0 || (WIFSIGNALED(status) && !WIFSIGNALED(*culprit_status)))) {
					culprit = i;
					*culprit_status = status;
				}
			}
	return culprit;
}

static void name_culprit(const run_share *s, int i, int status, bool outlive)
{
	const char *others = outlive ? "go on" : "are ended";

	if (WIFSIGNALED(status))
		fprintf(stderr, "gradcomp: rank %d on %s was ended by signal %d (%s); the others %s\n", s->first + i,
		        s->host, WTERMSIG(status), strsignal(WTERMSIG(status)), others);
	else
		fprintf(stderr, "gradcomp: rank %d on %s ended with status %d; the others %s\n", s->first + i, s->host,
		        WEXITSTATUS(status), others);
}

bool run_outlives(char *const *env)
{
	const char *own = getenv("GRADCOMP_ON_FAILURE");
	bool yes = own && !strcmp(own, "shrink");

	for (; *env; env++)
		if (!strncmp(*env, "GRADCOMP_ON_FAILURE=", 20))
			yes = !strcmp(*env + 20, "shrink");
	return yes;
}

int run_agent(const run_share *s, int orders)
{
	pid_t *group = calloc((size_t)s->count, sizeof *group), *live = calloc((size_t)s->count, sizeof *live),
	      self = getpid();
	int left = 0, well = 0, code = 0, status = 0, culprit, child;
	double limit = 0;
	bool outlive = run_outlives(s->env);
	bool asked = false; /* a signal for the ranks came from outside: their ends are no failures */
	sigset_t set, old;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &old);
	child = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (!group || !live || child < 0) {
		fprintf(stderr, "gradcomp: no memory or descriptors for %d ranks\n", s->count);
		free(group);
		free(live);
		if (child >= 0)
			close(child);
		return 1;
	}
	/* What the ranks leave behind comes to us, and is ended with them. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < s->count; i++) {
		pid_t pid = fork();

		if (pid == 0)
			start_rank(s, i, self, &old);
		if (pid < 0) {
			fprintf(stderr, "gradcomp: rank %d on %s cannot be started: %s\n", s->first + i, s->host,
			        strerror(errno));
			code = 1;
			end_all(group, s->count, &limit);
			break;
		}
		setpgid(pid, pid);
		group[i] = live[i] = pid;
		left++;
	}
	while (left) {
		struct pollfd p[2] = {{.fd = child, .events = POLLIN}, {.fd = orders, .events = POLLIN}};
		struct signalfd_siginfo info;
		unsigned char order;

		poll(p, 2, limit > 0 ? 100 : -1);
		while (read(child, &info, sizeof info) > 0)
			continue;
		culprit = reap(live, s->count, &left, &well, &status);
		if (culprit >= 0 && outlive && !asked && limit == 0) {
			code = run_status_code(status);
			name_culprit(s, culprit, status, true);
			kill(-group[culprit], SIGKILL); /* its workers */
		} else if (culprit >= 0 && !code) {
			code = run_status_code(status);
			if (!asked && limit == 0)
				name_culprit(s, culprit, status, false);
			end_all(group, s->count, &limit);
		}
		if (p[1].revents) {
			ssize_t got = read(orders, &order, 1);

			if (got == 1) {
				asked = true;
				signal_all(group, s->count, order);
			} else if (got == 0 || errno != EINTR) {
				orders = -1; /* poll() passes it by */
				end_all(group, s->count, &limit);
				code = code ? code : 1;
			}
		}
		if (limit > 0 && clock_now() > limit)
			signal_all(group, s->count, SIGKILL);
	}
	/* What ranks have started and left behind. */
	signal_all(group, s->count, SIGKILL);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		continue;
	close(child);
	free(group);
	free(live);
	return outlive && well && !asked && limit == 0 ? 0 : code;
}

/* ---- what an agent behind ssh is told ------------------------------------------------ */

/* "gradcomp-run 1", host, first, count, ranks, folder, number of variables, variables, number of
 * arguments, arguments: each ended by a 0. */
#define HELLO "gradcomp-run 1"

static bool put_text(FILE *f, const char *text)
{
	return fputs(text, f) != EOF && fputc(0, f) != EOF;
}

static bool put_list(FILE *f, char **list)
{
	int n = 0;

	while (list[n])
		n++;
	if (fprintf(f, "%d", n) < 0 || fputc(0, f) == EOF)
		return false;
	for (int i = 0; i < n; i++)
		if (!put_text(f, list[i]))
			return false;
	return true;
}

bool run_agent_tell(FILE *to, const run_share *s, const char *folder)
{
	return put_text(to, HELLO) && put_text(to, s->host) &&
	       fprintf(to, "%d%c%d%c%d%c", s->first, 0, s->count, 0, s->nranks, 0) > 0 && put_text(to, folder) &&
	       put_list(to, s->env) && put_list(to, s->argv);
}

static char *take_text(void)
{
	size_t n = 0, room = 256;
	char *text = malloc(room), *more;
	unsigned char c;

	/* Byte by byte: what follows is for run_agent(). */
	for (; text && read(0, &c, 1) == 1; text[n++] = (char)c) {
		if (c == 0) {
			text[n] = 0;
			return text;
		}
		if (n + 2 > room) {
			more = room < TEXT_MAX ? realloc(text, room *= 2) : NULL;
			if (!more)
				break;
			text = more;
		}
	}
	free(text);
	return NULL;
}

/* -1: none between lo and hi came. */
static int take_number(int lo, int hi)
{
	char *text = take_text();
	int64_t n = -1;

	if (!text || number_int(text, &n) != NUMBER_OK || n < lo || n > hi)
		n = -1;
	free(text);
	return (int)n;
}

static void free_list(char **list)
{
	for (char **p = list; p && *p; p++)
		free(*p);
	free(list);
}

static char **take_list(void)
{
	int n = take_number(0, STRINGS_MAX);
	char **list = n < 0 ? NULL : calloc((size_t)n + 1, sizeof *list);

	for (int i = 0; list && i < n; i++)
		if (!(list[i] = take_text())) {
			free_list(list);
			return NULL;
		}
	return list;
}

/* What follows the greeting. The exit status. */
static int obey(const run_share *s, const char *folder)
{
	if (!s->host || s->first < 0 || s->count < 0 || s->nranks < 0 || !folder || !s->env || !s->argv ||
	    !s->argv[0]) {
		fputs("gradcomp: run --agent: what it is to start did not come whole\n", stderr);
		return 2;
	}
	if (chdir(folder)) {
		fprintf(stderr, "gradcomp: there is no folder %s on %s: %s\n", folder, s->host, strerror(errno));
		return 1;
	}
	signal(SIGINT, SIG_IGN); /* comes through stdin */
	signal(SIGPIPE, SIG_IGN);
	return run_agent(s, 0);
}

int run_agent_remote(void)
{
	char *hello = take_text(), *host, *folder;
	bool right = hello && !strcmp(hello, HELLO);
	run_share s = {0};
	int status;

	free(hello);
	if (!right) {
		fputs("gradcomp: run --agent is what gradcomp run starts on other hosts; both must be of one version\n",
		      stderr);
		return 2;
	}
	s.host = host = take_text();
	s.first = take_number(0, RUN_RANKS_MAX);
	s.count = take_number(1, RUN_RANKS_MAX);
	s.nranks = take_number(1, RUN_RANKS_MAX);
	folder = take_text();
	s.env = take_list();
	s.argv = take_list();
	status = obey(&s, folder);
	free(host);
	free(folder);
	free_list(s.env);
	free_list(s.argv);
	return status;
}
