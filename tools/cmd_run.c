/* gradcomp run: ranks without Slurm. One agent a host (run_agent.h) starts the ranks there and ends them
 * when this command does not want them any more, or is gone: the agent holds the end of a pipe. On
 * other hosts the agent is this command behind ssh; what it is to start comes through its stdin,
 * where no list of processes shows it. */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/query.h"
#include "base/number.h"
#include "base/thread.h"
#include "bootstrap/rendezvous.h"
#include "bootstrap/run_env.h"
#include "tools/commands.h"
#include "tools/run_agent.h"

static const char usage[] =
	"usage: gradcomp run [-n N] [--hosts HOST[:N],...] [--gradcomp[-OPTION]=VALUE ...] COMMAND [ARGUMENT ...]\n"
	"\n"
	"Starts N ranks of COMMAND without Slurm, as one job. When one fails the others are ended and it\n"
	"is named. The exit status is that rank's; 128 and the signal's number where a signal ended it.\n"
	"With --gradcomp-on-failure=shrink the others go on, and the exit status is 0 when one ends with 0.\n"
	"\n"
	"  -n N                  ranks; without it 1, or as many as --hosts says\n"
	"  --hosts LIST          where: a:2,b:2 has ranks 0 and 1 on a; without it all are here\n"
	"  --ssh COMMAND         what reaches a host, called as COMMAND HOST TEXT; without it ssh\n"
	"  --gradcomp=SPEC       the compressor, as of srun\n"
	"  --gradcomp-OPTION=V   collective, report, schedule, trace, record, auto-attach, on-failure: likewise\n";

typedef struct host {
	const char *name; /* NULL: here, without ssh */
	int count, first;
	pid_t pid;
	int pipe; /* to its agent */
} host;

typedef struct job {
	host hosts[RUN_RANKS_MAX];
	int nhosts, nranks;
	const char *ssh;
	char **argv, **env;
	rendezvous_server *server;
	int until[2]; /* the server ends with it */
} job;

/* What goes to other hosts of the environment: the job's own and what a program is found by. */
static bool is_carried(const char *variable)
{
	static const char *const names[] = {
		"GRADCOMP", "PATH=", "LD_LIBRARY_PATH=", "PYTHONPATH=", "VIRTUAL_ENV=", "OMP_NUM_THREADS="};

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
	run_share s = {.host = h->name ? h->name : "this host",
	               .first = h->first,
	               .count = h->count,
	               .nranks = j->nranks,
	               .env = j->env,
	               .argv = j->argv};
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
		_exit(run_agent(&s, ends[0]));
	}
	close(ends[0]);
	h->pipe = ends[1];
	if (!h->name)
		return 0;
	char *folder = getcwd(NULL, 0), **env = remote_env(j->env);
	int copy = dup(h->pipe);
	FILE *f = copy < 0 ? NULL : fdopen(copy, "w");
	s.env = env;
	/* An agent that does not get all of it says so, and one that went away says why by its status. */
	if (f && folder && env)
		(void)run_agent_tell(f, &s, folder);
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

/* What reaches a host has a process group of its own, so that ^C does not end it before the ranks: a question
 * at the terminal, about a key or a password, stops it. Nobody would ever see it. */
static void end_stopped(const job *j, const host *h, int signal_number)
{
	if (signal_number != SIGTTIN && signal_number != SIGTTOU)
		return;
	fprintf(stderr,
	        "gradcomp: '%s %s' asks something at the terminal, which it cannot do here (a host key that it does not know, a "
	        "password): type it once by hand, or give it a key\n",
	        j->ssh, h->name ? h->name : "this host");
	kill(-h->pid, SIGKILL);
}

/* Until all agents have ended. The exit status. */
static int supervise(job *j)
{
	int left = j->nhosts, code = 0, sent = 0, well = 0, status;
	bool outlive = run_outlives(j->env);

	while (left) {
		int got = caught_signal();

		if (got && got != sent) {
			unsigned char order = (unsigned char)got;

			sent = got;
			for (int i = 0; i < j->nhosts; i++)
				if (j->hosts[i].pid && write(j->hosts[i].pipe, &order, 1) < 0)
					continue;
		}
		pid_t pid = waitpid(-1, &status, WNOHANG | WUNTRACED);
		if (pid <= 0) {
			(void)poll(NULL, 0, 20);
			continue;
		}
		for (int i = 0; i < j->nhosts; i++) {
			host *h = &j->hosts[i];

			if (h->pid != pid)
				continue;
			if (WIFSTOPPED(status)) {
				end_stopped(j, h, WSTOPSIG(status));
				break;
			}
			h->pid = 0;
			left--;
			close(h->pipe);
			h->pipe = -1;
			well += !status;
			if (!status || code)
				continue;
			code = run_status_code(status);
			if (WIFSIGNALED(status))
				fprintf(stderr, "gradcomp: what watches the ranks on %s was ended by signal %d\n",
				        h->name ? h->name : "this host", WTERMSIG(status));
			else if (h->name && WEXITSTATUS(status) == 255)
				fprintf(stderr, "gradcomp: host %s cannot be reached by '%s'\n", h->name, j->ssh);
			for (int k = 0; !outlive && k < j->nhosts; k++) /* which ends the others' ranks */
				if (j->hosts[k].pid) {
					close(j->hosts[k].pipe);
					j->hosts[k].pipe = -1;
				}
		}
	}
	return outlive && well && !sent ? 0 : code;
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
		if (!*item || *item == '-' || (colon && (number_int(colon + 1, &n) != NUMBER_OK || n < 1)) ||
		    n > RUN_RANKS_MAX - j->nranks) {
			fprintf(stderr, "gradcomp: --hosts '%s%s%s': must be HOST:N, N from 1, %d ranks in all\n", item,
			        colon ? ":" : "", colon ? colon + 1 : "", RUN_RANKS_MAX);
			return false;
		}
		j->hosts[j->nhosts++] = (host){.name = item, .count = (int)n, .first = j->nranks};
		j->nranks += (int)n;
	}
	return j->nhosts > 0;
}

/* Names a setting as one that an option has given, beside those of srun's: what is said of it names the option. */
static bool note_option(const char *word)
{
	const char *before = getenv("GRADCOMP_OPTIONS");
	char *all;
	bool noted;

	if (asprintf(&all, "%s%s%s", before ? before : "", before && *before ? " " : "", word) < 0)
		return false;
	noted = !setenv("GRADCOMP_OPTIONS", all, 1);
	free(all);
	return noted;
}

/* --gradcomp=SPEC is GRADCOMP=SPEC, --gradcomp-report=FILE GRADCOMP_REPORT=FILE. */
static bool take_setting(const char *option)
{
	static const char *const names[] = {"collective", "report",      "schedule",  "trace",
	                                    "record",     "auto_attach", "on_failure"};
	const char *equals = strchr(option, '='), *name = option + strlen("--gradcomp");
	char word[20], variable[40];
	size_t n = equals && *name == '-' ? (size_t)(equals - name) - 1 : 0;

	if (equals == name)
		return !setenv("GRADCOMP", equals + 1, 1) && note_option("compressor");
	if (!n || n >= sizeof word)
		return false;
	for (size_t i = 0; i <= n; i++)
		word[i] = i == n ? 0 : name[1 + i] == '-' ? '_' : name[1 + i];
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (!strcmp(word, names[i]) && !memchr(name + 1, '_', n)) {
			snprintf(variable, sizeof variable, "GRADCOMP_%s", word);
			for (char *c = variable; *c; c++)
				*c = (char)(*c - (*c >= 'a' && *c <= 'z' ? 'a' - 'A' : 0));
			return !setenv(variable, equals + 1, 1) && note_option(word);
		}
	return false;
}

/* The value of option `name` at argv[*i], or NULL. */
static const char *value_of(const char *name, int argc, char **argv, int *i)
{
	size_t n = strlen(name);

	if (!strcmp(argv[*i], name) && *i + 1 < argc && argv[*i + 1])
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
	gradcomp_error err;
	int64_t n = 0;
	bool asked = false;
	int i = 1;

	for (; i < argc && argv[i][0] == '-'; i++) {
		const char *v;

		if (!strcmp(argv[i], "--")) {
			i++;
			break;
		}
		if (!strcmp(argv[i], "--help") || !strcmp(argv[i], "-h"))
			return usage_help(usage);
		if (!strncmp(argv[i], "--gradcomp", 10) && take_setting(argv[i])) {
			asked = true;
			continue;
		}
		if ((v = value_of("--hosts", argc, argv, &i))) {
			free(*hosts);
			if (!(*hosts = strdup(v)))
				return 1;
		} else if ((v = value_of("--ssh", argc, argv, &i))) {
			j->ssh = v;
		} else if ((v = value_of("-n", argc, argv, &i))) {
			if (number_int(v, &n) != NUMBER_OK || n < 1 || n > RUN_RANKS_MAX)
				return usage_value(usage, "-n", v, "a number from 1 to 4096");
		} else {
			return usage_error(usage, "run: '%s' is no option, or has no value", argv[i]);
		}
	}
	if (i == argc)
		return usage_error(usage, "run needs a command");
	bool off = getenv("GRADCOMP") && !gradcomp_requested();
	if (asked && !off && query_check_options(NULL, NULL, NULL, &err)) /* the options are in the environment */
		return failed(&err);
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
		return run_agent_remote();
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
