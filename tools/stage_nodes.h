/* The other nodes' stagers of a step. */
#ifndef TOOLS_STAGE_NODES_H
#define TOOLS_STAGE_NODES_H

#include "gradcomp/gradcomp.h"

/* Set by the SPANK plugin: the addresses and the token of the step's rendezvous server,
 * this node's number, and the number of nodes. */
#define STAGE_RENDEZVOUS "GRADCOMP_RENDEZVOUS"
#define STAGE_RENDEZVOUS_TOKEN "GRADCOMP_RENDEZVOUS_TOKEN"
#define STAGE_RENDEZVOUS_RANK "GRADCOMP_RENDEZVOUS_RANK"
#define STAGE_RENDEZVOUS_RANKS "GRADCOMP_RENDEZVOUS_RANKS"

/* Nodes of the step, by the environment; 1 when that says nothing. */
int stage_nodes_count(void);
/* A job of all of them, by PMIx or else by the rendezvous server. *job is NULL, and that
 * is no failure, when there is no server. `stop` ends the wait for the others. */
gradcomp_status stage_nodes_open(int pmix, int (*stop)(void), gradcomp_job **job, gradcomp_error *err);

#endif
