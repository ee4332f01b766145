/* Where the nodes of a step meet to stage together. srun opens the place, a child of
 * its own that ends with it, and says in the job's environment where it is; the
 * stepds take that out again before the tasks see it. */
#ifndef SPANK_STAGE_RENDEZVOUS_H
#define SPANK_STAGE_RENDEZVOUS_H

#include <slurm/spank.h>

#include "spank/arguments.h"
#include "spank/exec_helper.h"

/* srun, before the step is launched. A place that cannot be opened is said, and each
 * node stages for itself. */
void stage_rendezvous_open(spank_t sp, const arguments *args, const char *spec, void (*line)(void *ctx, const char *text, int passing));
void stage_rendezvous_close(void);
/* Nothing of an outer step may reach this one. */
void stage_rendezvous_forget(void);

typedef struct stage_rendezvous {
	char where[1100], token[1100]; /* "NAME=value"; "" without a meeting */
	char rank[48], ranks[48];
	unsigned node, nodes;
	int live; /* columns of srun's terminal; 0: it has none */
} stage_rendezvous;

/* slurmstepd, in user_init. */
void stage_rendezvous_take(spank_t sp, stage_rendezvous *m);

#endif
