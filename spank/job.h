/* Prolog and epilog of a job on a node: processes of root's, apart from slurmd, that
 * know the job and its user and nothing else.
 *
 * They never fail, whatever a dataset does: a node whose prolog or epilog failed is
 * drained. What is touched for a user is touched by a child that is that user. */
#ifndef SPANK_JOB_H
#define SPANK_JOB_H

#include <slurm/spank.h>

#include "arguments.h"

/* Stages what gradcomp.conf declares shared, when it says prolog=yes. */
int job_prolog(spank_t sp, int ac, char **av);
/* Cleans up after what the records say the job did here. */
int job_epilog(spank_t sp, int ac, char **av);
/* slurmstepd, still as root: the job stages on this node, and its epilog is to know. */
void job_note(spank_t sp, const arguments *args);

#endif
