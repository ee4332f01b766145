/* The nodes that stage together: one acting rank each, what they tell each other, and
 * the ranks that wait for it. Alone, everything below is a plain return.
 *
 * Calls are collective over the acting ranks and made on the thread of
 * gradcomp_stage(), which goes on reporting progress meanwhile. A failure of one of
 * them (PEER, TIMEOUT) is the end of the job. */
#ifndef IO_STAGE_STAGE_GROUP_H
#define IO_STAGE_STAGE_GROUP_H

#include "io/transfer/transfer.h"

#define STAGE_GROUP_HOST 65

typedef struct stage_group {
	stage_run *run;
	gradcomp_group *nodes; /* acting ranks; NULL alone */
	gradcomp_group *local_ranks; /* ranks of this node; NULL when it has one */
	bool acting;
	bool split; /* nodes is a group of this stage group's own */
	transfer_ring ring;
	const gradcomp_links *links[3];
	char (*host)[STAGE_GROUP_HOST]; /* of the nodes */
	const char **hosts;
	gradcomp_status stopped; /* the caller's wish, heard while it could not be followed */
	gradcomp_error stop;
} stage_group;

/* Finds out who acts. Whatever is returned, to be freed. */
gradcomp_status stage_group_init(stage_group *c, stage_run *run, gradcomp_group *group, gradcomp_error *err);
void stage_group_free(stage_group *c);

/* Links for a ring, opened when they are needed. */
gradcomp_status stage_group_ring(stage_group *c, gradcomp_error *err);

/* What all return who were given OK everywhere; else the failure of the first node
 * that has one, by its name. run->changed becomes that node's, too. */
gradcomp_status stage_group_agree(stage_group *c, gradcomp_status status, gradcomp_error *err);
/* Node 0's bytes for all. */
gradcomp_status stage_group_bcast(stage_group *c, void *bytes, size_t n, gradcomp_error *err);
/* bytes[i] = OR over the nodes. */
gradcomp_status stage_group_or(stage_group *c, unsigned char *bytes, size_t n, gradcomp_error *err);
/* One row of n bytes a node. */
gradcomp_status stage_group_allgather(stage_group *c, const void *mine, void *all, size_t n, gradcomp_error *err);
/* The listing of node 0, for all. */
gradcomp_status stage_group_manifest(stage_group *c, stage_manifest *m, gradcomp_error *err);
/* The outcome of the acting rank, for the other ranks of its node. */
gradcomp_status stage_group_result(stage_group *c, gradcomp_stage_result *result, gradcomp_status status, gradcomp_error *err);

/* ---- inside --------------------------------------------------------------- */

/* Makes the call on a thread of its own, while this one reports progress. */
gradcomp_status stage_group_call(stage_group *c, gradcomp_status (*call)(void *ctx, gradcomp_error *err), void *ctx,
                           gradcomp_error *err);

#endif
