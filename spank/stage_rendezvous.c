#include "spank/stage_rendezvous.h"

#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "spank/spank_log.h"

#define OPEN_TIMEOUT 20 /* s */

/* srun passes variables that begin with SLURM_ even with --export=NONE. */
#define PREFIX "SLURM_GRADCOMP_"

static const char *const names[] = {PREFIX "RENDEZVOUS", PREFIX "RENDEZVOUS_TOKEN", PREFIX "RENDEZVOUS_RANKS",
                                    PREFIX "LIVE"};
enum { WHERE, TOKEN, RANKS, LIVE, NAMES };

static int keep = -1; /* the server's stdin: it ends when this is closed */

void stage_rendezvous_forget(void)
{
	for (int i = 0; i < NAMES; i++)
		unsetenv(names[i]);
}

/* Puts "WHERE TOKEN" into the environment. */
static int publish(char *text, unsigned nodes)
{
	char ranks[16], *token = strchr(text, ' ');
	if (!token)
		return -1;
	*token++ = 0;
	token[strcspn(token, "\n")] = 0;
	snprintf(ranks, sizeof ranks, "%u", nodes);
	return setenv(names[WHERE], text, 1) || setenv(names[TOKEN], token, 1) || setenv(names[RANKS], ranks, 1) ? -1
	                                                                                                         : 0;
}

void stage_rendezvous_open(spank_t sp, const arguments *args, const char *spec,
                           void (*line)(void *ctx, const char *text, bool passing))
{
	char why[512] = "", nodes_text[16], columns[16];
	char *argv[] = {(char *)args->helper, "rendezvous", "--detach",   "--nodes",
	                nodes_text,           "--stage",    (char *)spec, NULL};
	struct winsize size;
	uint32_t nodes = 0;
	int ends[2], lines = 0;
	static exec_helper r;                               /* srun calls this once, in its main thread */
	if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0) { /* a terminal */
		snprintf(columns, sizeof columns, "%d", size.ws_col ? size.ws_col : 80);
		setenv(names[LIVE], columns, 1);
	}
	if (spank_get_item(sp, S_JOB_NNODES, &nodes) != ESPANK_SUCCESS || nodes < 2)
		return;
	if (args->conf[0])
		setenv("GRADCOMP_CONF", args->conf, 0);
	snprintf(nodes_text, sizeof nodes_text, "%u", (unsigned)nodes);
	if (pipe2(ends, O_CLOEXEC) < 0)
		return;
	r = (exec_helper){
		.argv = argv, .env = environ, .timeout = OPEN_TIMEOUT, .line = line, .ctx = &lines, .in = ends[0]};
	int status = exec_helper_run(&r, why, sizeof why);
	close(ends[0]);
	if (status == 0 && r.output[0] && publish(r.output, nodes) == 0) {
		keep = ends[1];
		return;
	}
	close(ends[1]);
	if (status == 0 && !r.output[0])
		return; /* stage.together=no */
	if (status >= 0)
		snprintf(why, sizeof why, "gradcomp rendezvous ended with status %d", status);
	log_error("the nodes of this step cannot stage together, each of them reads all of the source: %s", why);
}

void stage_rendezvous_close(void)
{
	if (keep >= 0)
		close(keep);
	keep = -1;
}

void stage_rendezvous_take(spank_t sp, stage_rendezvous *r)
{
	char where[1000], token[1000], ranks[16] = "", live[16] = "";
	uint32_t node = 0, nodes = 1;
	spank_get_item(sp, S_JOB_NODEID, &node);
	spank_get_item(sp, S_JOB_NNODES, &nodes);
	bool found = spank_getenv(sp, names[WHERE], where, sizeof where) == ESPANK_SUCCESS &&
	             spank_getenv(sp, names[TOKEN], token, sizeof token) == ESPANK_SUCCESS &&
	             spank_getenv(sp, names[RANKS], ranks, sizeof ranks) == ESPANK_SUCCESS;
	r->live = spank_getenv(sp, names[LIVE], live, sizeof live) == ESPANK_SUCCESS ? atoi(live) : 0;
	for (int i = 0; i < NAMES; i++)
		spank_unsetenv(sp, names[i]);
	r->node = node;
	r->nodes = nodes;
	snprintf(r->rank, sizeof r->rank, "GRADCOMP_RENDEZVOUS_RANK=%u", r->node);
	snprintf(r->ranks, sizeof r->ranks, "GRADCOMP_RENDEZVOUS_RANKS=%u", r->nodes);
	/* A component of a heterogeneous step counts its own nodes only. */
	if (!found || strtoul(ranks, NULL, 10) != nodes)
		return;
	snprintf(r->where, sizeof r->where, "GRADCOMP_RENDEZVOUS=%s", where);
	snprintf(r->token, sizeof r->token, "GRADCOMP_RENDEZVOUS_TOKEN=%s", token);
}
