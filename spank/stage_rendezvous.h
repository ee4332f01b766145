/* How the nodes of a step find each other to stage together. srun starts a rendezvous
 * server, a child that ends with it, and puts its address into the job's environment.
 * slurmstepd removes it again, so that the tasks do not see it. */
#ifndef SPANK_STAGE_RENDEZVOUS_H
#define SPANK_STAGE_RENDEZVOUS_H

#include <slurm/spank.h>

#include "spank/arguments.h"
#include "spank/exec_helper.h"

/* In srun, before the step is launched. If the server cannot be started, this is logged and
 * each node stages for itself. */
void stage_rendezvous_open(spank_t sp, const arguments *args, const char *spec,
                           void (*line)(void *ctx, const char *text, bool passing));
void stage_rendezvous_close(void);
/* Removes the variables that an outer step may have left in the environment. */
void stage_rendezvous_forget(void);

typedef struct stage_rendezvous {
	char where[1100], token[1100]; /* "NAME=value"; "" without a server */
	char rank[48], ranks[48];
	unsigned node, nodes;
	int live; /* columns of srun's terminal; 0: it has none */
} stage_rendezvous;

/* In slurmstepd, in user_init. */
void stage_rendezvous_take(spank_t sp, stage_rendezvous *r);

#endif
