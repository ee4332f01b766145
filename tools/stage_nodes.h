/* The other nodes' stagers of a step. */
#ifndef TOOLS_STAGE_NODES_H
#define TOOLS_STAGE_NODES_H

#include "gradcomp/gradcomp.h"

/* Where the nodes meet, as the SPANK plugin tells: addresses, the token, this node's
 * number and how many there are. */
#define STAGE_MEET "GRADCOMP_MEET"
#define STAGE_MEET_TOKEN "GRADCOMP_MEET_TOKEN"
#define STAGE_MEET_RANK "GRADCOMP_MEET_RANK"
#define STAGE_MEET_RANKS "GRADCOMP_MEET_RANKS"

/* Nodes of the step, by the environment; 1 when that says nothing. */
int stage_nodes_count(void);
/* A job of all of them, by PMIx or else at the meeting place. *job is NULL without a
 * failure when there is no meeting. `stop` ends the wait for the others. */
gradcomp_status stage_nodes_open(int pmix, int (*stop)(void), gradcomp_job **job, gradcomp_error *err);

#endif
