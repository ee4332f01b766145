/* gradcomp run: ranks on this machine, without Slurm. The command serves their rendezvous and passes signals on; a
 * process below it starts the ranks and ends them (run_ranks.h). */
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
#include "tools/run_ranks.h"

static const char usage[] =
	"usage: gradcomp run [-n N] [--gradcomp[-OPTION]=VALUE ...] COMMAND [ARGUMENT ...]\n"
	"\n"
	"Starts N ranks of COMMAND on this machine without Slurm, as one job. When one fails the others are ended and it\n"
	"is named. The exit status is that rank's; 128 and the signal's number where a signal ended it.\n"
	"With --gradcomp-on-failure=shrink the others go on, and the exit status is 0 when one ends with 0.\n"
	"\n"
	"  -n N                  ranks; without it 1\n"
	"  --gradcomp=SPEC       the compressor, as of srun\n"
	"  --gradcomp-OPTION=V   collective, report, schedule, trace, record, auto-attach, on-failure: likewise\n";

typedef struct job {
	int nranks;
	char **argv, **env;
	pid_t ranks; /* the process that starts and ends them */
	int orders;  /* a pipe to it */
	rendezvous_server *server;
	int until[2]; /* the server ends with it */
} job;

static int start_ranks(job *j)
{
	int ends[2];
	if (pipe2(ends, O_CLOEXEC))
		return -1;
	fflush(NULL);
	j->ranks = fork();
	if (j->ranks < 0) {
		close(ends[0]);
		close(ends[1]);
		return -1;
	}
	if (j->ranks == 0) {
		setpgid(0, 0); /* ^C comes through the pipe */
		close(ends[1]);
		close(j->until[1]);
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGHUP, SIG_DFL);
		signal(SIGPIPE, SIG_DFL);
		_exit(run_ranks(j->nranks, j->env, j->argv, ends[0]));
	}
	close(ends[0]);
	j->orders = ends[1];
	return 0;
}

static void *serve(void *ctx)
{
	job *j = ctx;
	gradcomp_error err;
	(void)rendezvous_server_run(j->server, j->until[0], &err);
	return NULL;
}

/* Waits until all ranks have ended, and returns the exit status. */
static int supervise(const job *j)
{
	int sent = 0, status;
	while (waitpid(j->ranks, &status, WNOHANG) != j->ranks) {
		int got = command_caught_signal();

		if (got && got != sent) {
			unsigned char order = (unsigned char)got;

			sent = got;
			if (write(j->orders, &order, 1) < 0)
				continue;
		}
		(void)poll(NULL, 0, 20);
	}
	close(j->orders);
	if (WIFSIGNALED(status))
		fprintf(stderr, "gradcomp: what watches the ranks was ended by signal %d\n", WTERMSIG(status));
	return run_status_code(status);
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
static int take_line(job *j, int argc, char **argv)
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
			return command_usage_help(usage);
		if (!strncmp(argv[i], "--gradcomp", 10) && take_setting(argv[i])) {
			asked = true;
			continue;
		}
		if ((v = value_of("-n", argc, argv, &i))) {
			if (number_int(v, &n) != NUMBER_OK || n < 1 || n > 4096)
				return command_usage_value(usage, "-n", v, "a number from 1 to 4096");
		} else {
			return command_usage_error(usage, "run: '%s' is no option, or has no value", argv[i]);
		}
	}
	if (i == argc)
		return command_usage_error(usage, "run needs a command");
	bool off = getenv("GRADCOMP") && !gradcomp_requested();
	if (asked && !off && query_check_options(NULL, NULL, NULL, &err)) /* the options are in the environment */
		return command_failed(&err);
	j->argv = argv + i;
	j->nranks = n ? (int)n : 1;
	return -1;
}

static int run_job(job *j)
{
	char port[40], where[8192], token[1024];
	char *env[] = {"MASTER_ADDR=127.0.0.1", port, where, token, NULL};
	pthread_t server;
	gradcomp_error err;
	int code;
	if (pipe2(j->until, O_CLOEXEC)) {
		perror("gradcomp: pipe");
		return 1;
	}
	if (rendezvous_server_open(NULL, j->nranks, &j->server, &err))
		return command_failed(&err);
	snprintf(port, sizeof port, "MASTER_PORT=%d", free_port());
	snprintf(where, sizeof where, RUN_ENV_WHERE "=%s", rendezvous_server_where(j->server));
	snprintf(token, sizeof token, RUN_ENV_TOKEN "=%s", rendezvous_server_token(j->server));
	j->env = env;
	command_catch_signals();
	code = start_ranks(j);
	j->env = NULL;
	if (code) {
		fprintf(stderr, "gradcomp: no process for the ranks: %s\n", strerror(errno));
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
	job j = {0};
	int status = take_line(&j, argc, argv);
	return status < 0 ? run_job(&j) : status;
}
