/* Where the nodes of a step meet to stage together. srun opens the place, a child of
 * its own that ends with it, and says in the job's environment where it is; the
 * stepds take that out again before the tasks see it. */
#ifndef SPANK_MEET_H
#define SPANK_MEET_H

#include <slurm/spank.h>

#include "arguments.h"
#include "run.h"

/* srun, before the step is launched. A place that cannot be opened is said, and each
 * node stages for itself. */
void meet_open(spank_t sp, const arguments *args, const char *spec, void (*line)(void *ctx, const char *text, int passing));
void meet_close(void);
/* Nothing of an outer step may reach this one. */
void meet_forget(void);

typedef struct meeting {
	char where[1100], token[1100]; /* "NAME=value"; "" without a meeting */
	char rank[48], ranks[48];
	unsigned node, nodes;
	int live; /* columns of srun's terminal; 0: it has none */
} meeting;

/* slurmstepd, in user_init. */
void meet_take(spank_t sp, meeting *m);

#endif
