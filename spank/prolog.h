/* Prolog and epilog of a job on a node: processes of root's, apart from slurmd, that
 * know the job and its user and nothing else.
 *
 * They never fail, whatever happens to a dataset, because Slurm drains a node whose prolog or
 * epilog fails. A user's files are touched only by a child that runs as that user. */
#ifndef SPANK_PROLOG_H
#define SPANK_PROLOG_H

#include <slurm/spank.h>
#include <stdbool.h>

#include "spank/arguments.h"

/* Stages what gradcomp.conf declares shared, when it says prolog=yes. */
int prolog_job_begin(spank_t sp, int ac, char **av);
/* Cleans up after what the records say the job did here. */
int prolog_job_end(spank_t sp, int ac, char **av);
/* slurmd looks for prologs and epilogs of plugins only when it starts. Reading its files again
 * (scontrol reconfigure, SIGHUP) is not enough on Slurm 22.05. */
#define PROLOG_UNSEEN \
	"slurmd on this node runs neither prolog nor epilog of gradcomp, so nothing cleans up after " \
	"jobs that stage: it was started before plugstack.conf named the plugin; restart it"
/* slurmstepd, still as root: the job stages on this node, and its epilog is to know. True:
 * there will be no epilog, which is logged now and is to be said to the user; once on each node. */
bool prolog_note_staging(spank_t sp, const arguments *args);

#endif
