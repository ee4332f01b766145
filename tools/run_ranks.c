#include "tools/run_ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"

#define GRACE 5.0 /* seconds from the first failure, or the end of the command, to SIGKILL */

/* `word` has one byte: the first rank that cannot begin takes it, and says why. Any may be the first to end all others. */
static void start_rank(int i, int count, char **env, char **argv, pid_t parent, const sigset_t *old, int word)
{
	char text[16], byte;
	int null = open("/dev/null", O_RDONLY);
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (getppid() != parent)
		_exit(1);
	setpgid(0, 0);
	dup2(null, 0);
	for (; *env; env++)
		putenv(*env);
	snprintf(text, sizeof text, "%d", i);
	setenv("RANK", text, 1);
	setenv("LOCAL_RANK", text, 1);
	snprintf(text, sizeof text, "%d", count);
	setenv("WORLD_SIZE", text, 1);
	setenv("LOCAL_WORLD_SIZE", text, 1);
	sigprocmask(SIG_SETMASK, old, NULL);
	execvp(argv[0], argv);
	const int why = errno, code = why == ENOENT ? 127 : 126;
	if (read(word, &byte, 1) == 1)
		fprintf(stderr, "gradcomp: %s cannot be run: %s\n", argv[0], strerror(why));
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

/* Waits for the ranks that have ended by now; a signal's victim is the culprit before those that only noticed. -1:
 * no rank has failed. */
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

static void name_culprit(int i, int status, bool outlive)
{
	const char *others = outlive ? "go on" : "are ended";
	if (WIFSIGNALED(status))
		fprintf(stderr, "gradcomp: rank %d was ended by signal %d (%s); the others %s\n", i, WTERMSIG(status),
		        strsignal(WTERMSIG(status)), others);
	else
		fprintf(stderr, "gradcomp: rank %d ended with status %d; the others %s\n", i, WEXITSTATUS(status),
		        others);
}

/* Ranks with this environment, beside our own, outlive each other when it says GRADCOMP_ON_FAILURE=shrink. */
static bool outlives(char *const *env)
{
	const char *own = getenv("GRADCOMP_ON_FAILURE");
	bool yes = own && !strcmp(own, "shrink");
	for (; *env; env++)
		if (!strncmp(*env, "GRADCOMP_ON_FAILURE=", 20))
			yes = !strcmp(*env + 20, "shrink");
	return yes;
}

int run_ranks(int count, char **env, char **argv, int orders)
{
	pid_t *group = calloc((size_t)count, sizeof *group), *live = calloc((size_t)count, sizeof *live),
	      self = getpid();
	int left = 0, well = 0, code = 0, status = 0, culprit, child, word[2] = {-1, -1};
	double limit = 0;
	bool outlive = outlives(env);
	bool asked = false; /* a signal for the ranks came from outside: their ends are no failures */
	sigset_t set, old;
	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &old);
	child = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (!group || !live || child < 0 || pipe2(word, O_CLOEXEC | O_NONBLOCK) || write(word[1], "", 1) != 1) {
		fprintf(stderr, "gradcomp: no memory or descriptors for %d ranks\n", count);
		free(group);
		free(live);
		if (child >= 0)
			close(child);
		if (word[0] >= 0) {
			close(word[0]);
			close(word[1]);
		}
		return 1;
	}
	/* Processes that the ranks leave behind come to us, and are ended with them. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();

		if (pid == 0)
			start_rank(i, count, env, argv, self, &old, word[0]);
		if (pid < 0) {
			fprintf(stderr, "gradcomp: rank %d cannot be started: %s\n", i, strerror(errno));
			code = 1;
			end_all(group, count, &limit);
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
		culprit = reap(live, count, &left, &well, &status);
		if (culprit >= 0 && outlive && !asked && limit == 0) {
			code = run_status_code(status);
			name_culprit(culprit, status, true);
			kill(-group[culprit], SIGKILL); /* its workers */
		} else if (culprit >= 0 && !code) {
			code = run_status_code(status);
			if (!asked && limit == 0)
				name_culprit(culprit, status, false);
			end_all(group, count, &limit);
		}
		if (p[1].revents) {
			ssize_t got = read(orders, &order, 1);

			if (got == 1) {
				asked = true;
				signal_all(group, count, order);
			} else if (got == 0 || errno != EINTR) {
				orders = -1; /* poll() passes it by */
				end_all(group, count, &limit);
				code = code ? code : 1;
			}
		}
		if (limit > 0 && clock_now() > limit)
			signal_all(group, count, SIGKILL);
	}
	/* Processes that ranks have started and left behind end here. */
	signal_all(group, count, SIGKILL);
	while (waitpid(-1, NULL, WNOHANG) > 0)
		continue;
	close(child);
	close(word[0]);
	close(word[1]);
	free(group);
	free(live);
	return outlive && well && !asked && limit == 0 ? 0 : code;
}
