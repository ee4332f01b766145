/* The nodes that stage together: one acting rank of each node, the messages between them, and
 * the other ranks of a node, which wait for theirs. On one node alone, everything below returns
 * at once.
 *
 * Calls are collective over the acting ranks and made on the thread of
 * gradcomp_stage(), which goes on reporting progress meanwhile. If one of
 * them fails (PEER, TIMEOUT), the job ends. */
#ifndef IO_STAGE_STAGE_GROUP_H
#define IO_STAGE_STAGE_GROUP_H

#include "io/transfer/transfer.h"

#define STAGE_GROUP_HOST 65

typedef struct stage_group {
	stage_run *run;
	gradcomp_group *nodes;       /* acting ranks; NULL alone */
	gradcomp_group *local_ranks; /* ranks of this node; NULL when it has one */
	bool acting;
	bool split; /* nodes is a group of this stage group's own */
	transfer_peers peers;
	char (*host)[STAGE_GROUP_HOST]; /* the nodes' */
	const char **hosts;
	gradcomp_status stopped; /* the caller wanted to stop while the other nodes waited for this one */
	gradcomp_error stop;
} stage_group;

/* Finds the acting rank of each node. To be freed whatever is returned. */
gradcomp_status stage_group_init(stage_group *c, stage_run *run, gradcomp_group *group, gradcomp_error *err);
void stage_group_free(stage_group *c);

/* Links for transfers, opened when they are needed. */
gradcomp_status stage_group_links(stage_group *c, gradcomp_error *err);

/* OK when `status` is OK on all nodes; else, on all of them, the failure of the first node that
 * has one, by its name. run->changed becomes that node's, too. */
gradcomp_status stage_group_agree(stage_group *c, gradcomp_status status, gradcomp_error *err);
/* Broadcasts node 0's bytes. */
gradcomp_status stage_group_bcast(stage_group *c, void *bytes, size_t n, gradcomp_error *err);
/* bytes[i] = OR over the nodes. */
gradcomp_status stage_group_or(stage_group *c, unsigned char *bytes, size_t n, gradcomp_error *err);
/* Gathers one row of n bytes of each node. */
gradcomp_status stage_group_allgather(stage_group *c, const void *mine, void *all, size_t n, gradcomp_error *err);
/* Broadcasts the listing of node 0. */
gradcomp_status stage_group_manifest(stage_group *c, stage_manifest *m, gradcomp_error *err);
/* Passes on the result of the acting rank to the other ranks of its node. */
gradcomp_status stage_group_result(stage_group *c, gradcomp_stage_result *result, gradcomp_status status,
                                   gradcomp_error *err);

#endif
