/* gradcomp run: ranks without Slurm. One agent a host, which is a process of its own, starts the ranks
 * there and ends them when this command does not want them any more, or is gone: the agent holds the
 * end of a pipe. On other hosts the agent is this command behind ssh; what it is to start comes
 * through its stdin, where no list of processes shows it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/number.h"
#include "base/thread.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/run_env.h"
#include "tools/commands.h"

static const char usage[] =
	"usage: gradcomp run [-n N] [--hosts HOST[:N],...] [--gradcomp[-OPTION]=VALUE ...] COMMAND [ARGUMENT ...]\n"
	"\n"
	"Starts N ranks of COMMAND without Slurm, as one job. When one fails the others are ended and it\n"
	"is named. The exit status is that rank's; 128 and the signal's number where a signal ended it.\n"
	"\n"
	"  -n N                  ranks; without it 1, or as many as --hosts says\n"
	"  --hosts LIST          where: a:2,b:2 has ranks 0 and 1 on a; without it all are here\n"
	"  --ssh COMMAND         what reaches a host, called as COMMAND HOST TEXT; without it ssh\n"
	"  --gradcomp=SPEC       the compressor, as of srun\n"
	"  --gradcomp-OPTION=V   collective, report, schedule, trace, record: likewise\n";

#define RANKS_MAX 4096
#define STRINGS_MAX 4096
#define TEXT_MAX (1 << 20)
#define GRACE 5.0 /* seconds from the first failure, or the end of the command, to SIGKILL */

/* What the agent of a host starts. */
typedef struct share {
	const char *host; /* for messages */
	int first, count, nranks;
	char **env; /* to be set, NAME=VALUE; ended by NULL */
	char **argv;
} share;

/* ---- an agent ----------------------------------------------------------------------- */

static void start_rank(const share *s, int i, pid_t agent, const sigset_t *old)
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

static int status_code(int status)
{
	return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

/* Of the ranks that have ended by now a signal's victim is the culprit before those that only
 * noticed. -1: no rank has failed. */
static int reap(pid_t *live, int n, int *left, int *culprit_status)
{
	int culprit = -1, status;
	pid_t pid;

	while ((pid = waitpid(-1, &status, WNOHANG)) > 0)
		for (int i = 0; i < n; i++)
			if (live[i] == pid) {
				live[i] = 0;
				(*left)--;
				if (status && (culprit < 0 || (WIFSIGNALED(status) && !WIFSIGNALED(*culprit_status)))) {
					culprit = i;
					*culprit_status = status;
				}
			}
	return culprit;
}

static void name_culprit(const share *s, int i, int status)
{
	if (WIFSIGNALED(status))
		fprintf(stderr, "gradcomp: rank %d on %s was ended by signal %d (%s); the others are ended\n", s->first + i, s->host,
		        WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		fprintf(stderr, "gradcomp: rank %d on %s ended with status %d; the others are ended\n", s->first + i, s->host,
		        WEXITSTATUS(status));
}

/* `orders` brings numbers of signals for the ranks; at its end they are to end. The exit status. */
static int agent(const share *s, int orders)
{
	pid_t *group = calloc((size_t)s->count, sizeof *group), *live = calloc((size_t)s->count, sizeof *live), self = getpid();
	int left = 0, code = 0, status = 0, culprit, child;
	double limit = 0;
	bool asked = false; /* a signal for the ranks came from outside: their ends are no failures */
	sigset_t set, old;

	sigemptyset(&set);
	sigaddset(&set, SIGCHLD);
	sigprocmask(SIG_BLOCK, &set, &old);
	child = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	if (!group || !live || child < 0) {
		fprintf(stderr, "gradcomp: no memory or descriptors for %d ranks\n", s->count);
		return 1;
	}
	/* What the ranks leave behind comes to us, and is ended with them. */
	prctl(PR_SET_CHILD_SUBREAPER, 1);
	for (int i = 0; i < s->count; i++) {
		pid_t pid = fork();

		if (pid == 0)
			start_rank(s, i, self, &old);
		if (pid < 0) {
			fprintf(stderr, "gradcomp: rank %d on %s cannot be started: %s\n", s->first + i, s->host, strerror(errno));
			code = 1;
			limit = clock_now() + GRACE;
			signal_all(group, s->count, SIGTERM);
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
		culprit = reap(live, s->count, &left, &status);
		if (culprit >= 0 && !code) {
			code = status_code(status);
			if (!asked && limit == 0)
				name_culprit(s, culprit, status);
			if (limit == 0)
				signal_all(group, s->count, SIGTERM);
			limit = limit > 0 ? limit : clock_now() + GRACE;
		}
		if (p[1].revents) {
			ssize_t got = read(orders, &order, 1);

			if (got == 1) {
				asked = true;
				signal_all(group, s->count, order);
			} else if (got == 0 || errno != EINTR) {
				orders = -1; /* poll() passes it by */
				if (limit == 0)
					signal_all(group, s->count, SIGTERM);
				limit = limit > 0 ? limit : clock_now() + GRACE;
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
	return code;
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

static char *take_text(void)
{
	size_t n = 0, room = 256;
	char *text = malloc(room), *more;
	unsigned char c;

	/* Byte by byte: what follows is for agent(). */
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

static char **take_list(void)
{
	int n = take_number(0, STRINGS_MAX);
	char **list = n < 0 ? NULL : calloc((size_t)n + 1, sizeof *list);

	for (int i = 0; list && i < n; i++)
		if (!(list[i] = take_text()))
			return NULL;
	return list;
}

static int remote_agent(void)
{
	char *hello = take_text(), *folder;
	share s = {0};

	if (!hello || strcmp(hello, HELLO) != 0) {
		fputs("gradcomp: run --agent is what gradcomp run starts on other hosts; both must be of one version\n", stderr);
		return 2;
	}
	s.host = take_text();
	s.first = take_number(0, RANKS_MAX);
	s.count = take_number(1, RANKS_MAX);
	s.nranks = take_number(1, RANKS_MAX);
	folder = take_text();
	s.env = take_list();
	s.argv = take_list();
	if (!s.host || s.first < 0 || s.count < 0 || s.nranks < 0 || !folder || !s.env || !s.argv || !s.argv[0]) {
		fputs("gradcomp: run --agent: what it is to start did not come whole\n", stderr);
		return 2;
	}
	if (chdir(folder)) {
		fprintf(stderr, "gradcomp: there is no folder %s on %s: %s\n", folder, s.host, strerror(errno));
		return 1;
	}
	signal(SIGINT, SIG_IGN); /* comes through stdin */
	signal(SIGPIPE, SIG_IGN);
	return agent(&s, 0);
}

/* ---- the command ---------------------------------------------------------------------- */

typedef struct host {
	const char *name; /* NULL: here, without ssh */
	int count, first;
	pid_t pid;
	int pipe; /* to its agent */
} host;

typedef struct job {
	host hosts[RANKS_MAX];
	int nhosts, nranks;
	const char *ssh;
	char **argv, **env;
	rendezvous_server *server;
	int until[2]; /* the server ends with it */
} job;

extern char **environ;

/* What goes to other hosts of the environment: the job's own and what a program is found by. */
static bool is_carried(const char *variable)
{
	static const char *const names[] = {"GRADCOMP", "PATH=", "LD_LIBRARY_PATH=", "PYTHONPATH=", "VIRTUAL_ENV=", "OMP_NUM_THREADS="};

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strncmp(variable, names[i], strlen(names[i])))
			return true;
	return false;
}

static char **remote_env(char **own)
{
	int n = 0, m = 0;
	char **all;

	while (environ[n])
		n++;
	while (own[m])
		m++;
	all = calloc((size_t)(n + m) + 1, sizeof *all);
	for (int i = m = 0; all && i < n; i++)
		if (is_carried(environ[i]))
			all[m++] = environ[i];
	for (int i = 0; all && own[i]; i++)
		all[m++] = own[i];
	return all;
}

/* In the process that becomes ssh: its stdin is the pipe. */
static void become_ssh(const job *j, const host *h, int end)
{
	char self[4096], *line, *words;
	ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);

	self[n > 0 ? n : 0] = 0;
	dup2(end, 0);
	/* Both may have blanks in them: --ssh for the shell here, the path for the one there. */
	if (n > 0 && !strchr(self, '\'') && asprintf(&words, "'%s' run --agent", self) >= 0 &&
	    asprintf(&line, "exec %s \"$0\" \"$1\"", j->ssh) >= 0)
		execl("/bin/sh", "sh", "-c", line, h->name, words, (char *)NULL);
	_exit(127);
}

static int start_host(job *j, host *h)
{
	share s = {.host = h->name ? h->name : "this host", .first = h->first, .count = h->count, .nranks = j->nranks,
	           .env = j->env, .argv = j->argv};
	int ends[2];

	if (pipe2(ends, O_CLOEXEC))
		return -1;
	fflush(NULL);
	h->pid = fork();
	if (h->pid < 0) {
		close(ends[0]);
		close(ends[1]);
		return -1;
	}
	if (h->pid == 0) {
		setpgid(0, 0); /* ^C comes through the pipe */
		close(ends[1]);
		for (const host *other = j->hosts; other < h; other++)
			close(other->pipe);
		close(j->until[1]);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGHUP, SIG_DFL);
		signal(SIGPIPE, SIG_DFL);
		if (h->name)
			become_ssh(j, h, ends[0]);
		_exit(agent(&s, ends[0]));
	}
	close(ends[0]);
	h->pipe = ends[1];
	if (!h->name)
		return 0;
	char *folder = getcwd(NULL, 0), **env = remote_env(j->env);
	int copy = dup(h->pipe);
	FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
	/* An agent that does not get all of it says so, and one that went away says why by its status. */
	if (f && folder && env && put_text(f, HELLO) && put_text(f, h->name) &&
	    fprintf(f, "%d%c%d%c%d%c", h->first, 0, h->count, 0, j->nranks, 0) > 0 && put_text(f, folder))
		(void)(put_list(f, env) && put_list(f, j->argv));
	if (f)
		(void)fclose(f);
	free(folder);
	free(env);
	return 0;
}

static void *serve(void *ctx)
{
	job *j = ctx;
	gradcomp_error err;

	(void)rendezvous_server_run(j->server, j->until[0], &err);
	return NULL;
}

/* Until all agents have ended. The exit status. */
static int supervise(job *j)
{
	int left = j->nhosts, code = 0, sent = 0, status;

	while (left) {
		int got = caught_signal();

		if (got && got != sent) {
			unsigned char order = (unsigned char)got;

			sent = got;
			for (int i = 0; i < j->nhosts; i++)
				if (j->hosts[i].pid && write(j->hosts[i].pipe, &order, 1) < 0)
					continue;
		}
		pid_t pid = waitpid(-1, &status, WNOHANG);
		if (pid <= 0) {
			(void)poll(NULL, 0, 20);
			continue;
		}
		for (int i = 0; i < j->nhosts; i++) {
			host *h = &j->hosts[i];

			if (h->pid != pid)
				continue;
			h->pid = 0;
			left--;
			close(h->pipe);
			h->pipe = -1;
			if (!status || code)
				continue;
			code = status_code(status);
			if (WIFSIGNALED(status))
				fprintf(stderr, "gradcomp: what watches the ranks on %s was ended by signal %d\n", h->name ? h->name : "this host",
				        WTERMSIG(status));
			else if (h->name && WEXITSTATUS(status) == 255)
				fprintf(stderr, "gradcomp: host %s cannot be reached by '%s'\n", h->name, j->ssh);
			for (int k = 0; k < j->nhosts; k++) /* which ends the others' ranks */
				if (j->hosts[k].pid) {
					close(j->hosts[k].pipe);
					j->hosts[k].pipe = -1;
				}
		}
	}
	return code;
}

/* A port of this machine that nobody has now. */
static int free_port(void)
{
	struct sockaddr_in a = {.sin_family = AF_INET};
	socklen_t n = sizeof a;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = 29500;

	if (fd >= 0 && !bind(fd, (struct sockaddr *)&a, sizeof a) && !getsockname(fd, (struct sockaddr *)&a, &n))
		port = ntohs(a.sin_port);
	if (fd >= 0)
		close(fd);
	return port;
}

/* Takes `list` apart. False, and what is wrong has been said. */
static bool take_hosts(job *j, char *list)
{
	for (char *save, *item = strtok_r(list, ",", &save); item; item = strtok_r(NULL, ",", &save)) {
		char *colon = strrchr(item, ':');
		int64_t n = 1;

		if (colon)
			*colon = 0;
		if (!*item || *item == '-' || (colon && (number_int(colon + 1, &n) != NUMBER_OK || n < 1)) || n > RANKS_MAX - j->nranks) {
			fprintf(stderr, "gradcomp: --hosts '%s%s%s': must be HOST:N, N from 1, %d ranks in all\n", item, colon ? ":" : "",
			        colon ? colon + 1 : "", RANKS_MAX);
			return false;
		}
		j->hosts[j->nhosts++] = (host){.name = item, .count = (int)n, .first = j->nranks};
		j->nranks += (int)n;
	}
	return j->nhosts > 0;
}

/* --gradcomp=SPEC is GRADCOMP=SPEC, --gradcomp-report=FILE GRADCOMP_REPORT=FILE. */
static bool take_setting(const char *option)
{
	static const char *const names[] = {"collective", "report", "schedule", "trace", "record"};
	const char *equals = strchr(option, '='), *name = option + strlen("--gradcomp");
	char variable[40] = "GRADCOMP";

	if (equals == name)
		return !setenv(variable, equals + 1, 1);
	for (size_t i = 0; equals && i < sizeof names / sizeof *names; i++)
		if (*name == '-' && (size_t)(equals - name - 1) == strlen(names[i]) && !strncmp(name + 1, names[i], strlen(names[i]))) {
			snprintf(variable, sizeof variable, "GRADCOMP_%s", names[i]);
			for (char *c = variable; *c; c++)
				*c -= *c >= 'a' && *c <= 'z' ? 'a' - 'A' : 0;
			return !setenv(variable, equals + 1, 1);
		}
	return false;
}

/* The value of option `name` at argv[*i], or NULL. */
static const char *value_of(const char *name, int argc, char **argv, int *i)
{
	size_t n = strlen(name);

	if (!strcmp(argv[*i], name) && *i + 1 < argc)
		return argv[++*i];
	if (strncmp(argv[*i], name, n) != 0)
		return NULL;
	if (n == 2 && argv[*i][n]) /* -n4 */
		return argv[*i] + n;
	return argv[*i][n] == '=' ? argv[*i] + n + 1 : NULL;
}

/* Options up to the command. -1 to go on, or the exit status. */
static int take_line(job *j, int argc, char **argv, char **hosts)
{
	int64_t n = 0;
	int i = 1;

	for (; i < argc && argv[i][0] == '-'; i++) {
		const char *v;

		if (!strcmp(argv[i], "--")) {
			i++;
			break;
		}
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return usage_help(usage);
		if (!strncmp(argv[i], "--gradcomp", 10) && take_setting(argv[i]))
			continue;
		if ((v = value_of("--hosts", argc, argv, &i))) {
			free(*hosts);
			if (!(*hosts = strdup(v)))
				return 1;
		} else if ((v = value_of("--ssh", argc, argv, &i))) {
			j->ssh = v;
		} else if ((v = value_of("-n", argc, argv, &i))) {
			if (number_int(v, &n) != NUMBER_OK || n < 1 || n > RANKS_MAX)
				return usage_value(usage, "-n", v, "a number from 1 to 4096");
		} else {
			return usage_error(usage, "run: '%s' is no option, or has no value", argv[i]);
		}
	}
	if (i == argc)
		return usage_error(usage, "run needs a command");
	j->argv = argv + i;
	if (*hosts && !take_hosts(j, *hosts))
		return 2;
	if (*hosts && n && n != j->nranks)
		return usage_error(usage, "run: -n %lld, but --hosts has room for %d ranks", (long long)n, j->nranks);
	if (!*hosts) {
		j->nranks = n ? (int)n : 1;
		j->hosts[j->nhosts++] = (host){.count = j->nranks};
	}
	return -1;
}

static int run_job(job *j)
{
	char world[40], port[40], master[300], where[8192], token[1024];
	char *env[] = {world, master, port, where, token, NULL};
	pthread_t server;
	gradcomp_error err;
	int code;

	if (pipe2(j->until, O_CLOEXEC)) {
		perror("gradcomp: pipe");
		return 1;
	}
	if (rendezvous_server_open(NULL, j->nranks, &j->server, &err))
		return failed(&err);
	snprintf(world, sizeof world, "WORLD_SIZE=%d", j->nranks);
	snprintf(port, sizeof port, "MASTER_PORT=%d", free_port());
	snprintf(master, sizeof master, "MASTER_ADDR=%s", j->hosts[0].name ? j->hosts[0].name : "127.0.0.1");
	snprintf(where, sizeof where, RUN_ENV_WHERE "=%s", rendezvous_server_where(j->server));
	snprintf(token, sizeof token, RUN_ENV_TOKEN "=%s", rendezvous_server_token(j->server));
	j->env = env;
	catch_signals();
	for (int i = 0; i < j->nhosts; i++)
		if (start_host(j, &j->hosts[i])) {
			fprintf(stderr, "gradcomp: no process for the ranks: %s\n", strerror(errno));
			while (i--)
				close(j->hosts[i].pipe);
			return 1;
		}
	if (thread_start(&server, serve, j)) {
		fputs("gradcomp: no thread for the rendezvous server\n", stderr);
		return 1;
	}
	code = supervise(j);
	close(j->until[1]);
	pthread_join(server, NULL);
	rendezvous_server_close(j->server);
	close(j->until[0]);
	return code;
}

int cmd_run(int argc, char **argv)
{
	char *hosts = NULL;
	job *j;
	int status;

	if (argc == 2 && !strcmp(argv[1], "--agent"))
		return remote_agent();
	j = calloc(1, sizeof *j);
	if (!j)
		return 1;
	j->ssh = "ssh";
	status = take_line(j, argc, argv, &hosts);
	if (status < 0)
		status = run_job(j);
	free(hosts);
	free(j);
	return status;
}
