/* gradcomp rendezvous: the server by which the nodes of a step find each other to stage
 * together. The SPANK plugin starts it in srun, as the user. It ends when all nodes are
 * connected to each other, or with srun, which holds the other end of its stdin. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/commands.h"
#include "bootstrap/rendezvous.h"
#include "base/number.h"
#include "config/config.h"
#include "tools/stage_spec.h"

static const char usage[] = "usage: gradcomp rendezvous --nodes N [--detach] [--stage SPEC]\n"
			    "\n"
			    "Runs a rendezvous server for the stagers of N nodes, until they have found each other\n"
			    "or stdin is at its end. Prints its addresses and its token, separated by a blank.\n"
			    "\n"
			    "  --detach       in the background, once the line is out\n"
			    "  --stage SPEC   only when the nodes stage SPEC together; otherwise nothing is printed\n";

/* 1: the nodes stage together, 0: each for itself, -1: failed, and the error is printed. */
static int wanted(const char *spec_text)
{
	stage_spec spec = {0};
	char why[300];
	gradcomp_error err;
	config *c;
	if (config_load(NULL, &c, &err)) {
		command_failed(&err);
		return -1;
	}
	int together = (int)config_int(c, SET_STAGE_TOGETHER);
	config_free(c);
	if (stage_spec_parse(spec_text, &spec, why, sizeof why)) {
		fprintf(stderr, "gradcomp: %s\n", why);
		together = -1;
	}
	/* A part of it has no meaning alone. */
	for (int i = 0; i < spec.n; i++)
		together |= spec.source[i].mode == GRADCOMP_STAGE_SHARD;
	stage_spec_clear(&spec);
	return together;
}

/* The parent has printed the line; the child has nothing of the terminal but stdin. */
static int detach(void)
{
	fflush(stdout);
	pid_t pid = fork();

	if (pid < 0)
		return -1;
	if (pid > 0)
		_exit(ferror(stdout) ? 1 : 0);
	/* Ctrl-C is for srun; that it ends is what counts here. */
	signal(SIGINT, SIG_IGN);
	signal(SIGHUP, SIG_IGN);
	return !freopen("/dev/null", "w", stdout) || !freopen("/dev/null", "w", stderr) ? -1 : 0;
}

int cmd_rendezvous(int argc, char **argv)
{
	const char *nodes = NULL, *spec = NULL;
	int background = 0, status;
	const command_option options[] = {{"--detach", NULL, &background},
	                                  {"--nodes", &nodes, NULL},
	                                  {"--stage", &spec, NULL},
	                                  {NULL, NULL, NULL}};
	rendezvous_server *server;
	gradcomp_error err;
	int64_t n;
	status = command_take_options(argc, argv, usage, options, NULL, 0);
	if (status >= 0)
		return status;
	if (!nodes || number_int(nodes, &n) != NUMBER_OK || n < 1 || n > 65536)
		return command_usage_error(usage, "rendezvous needs --nodes, a number from 1 to 65536");
	if (spec && (status = wanted(spec)) < 1)
		return status < 0 ? 1 : 0;
	if (rendezvous_server_open(NULL, (int)n, &server, &err))
		return command_failed(&err);
	printf("%s %s\n", rendezvous_server_where(server), rendezvous_server_token(server));
	signal(SIGPIPE, SIG_IGN);
	status = background && detach() ? 1 : 0;
	if (!status && fflush(stdout) == 0)
		status = rendezvous_server_run(server, STDIN_FILENO, &err) ? command_failed(&err) : 0;
	rendezvous_server_close(server);
	return status;
}
