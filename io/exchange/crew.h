/* The nodes that stage together: one acting rank each, what they tell each other, and
 * the ranks that wait for it. Alone, everything below is a plain return.
 *
 * Calls are collective over the acting ranks and made on the thread of
 * gradcomp_stage(), which goes on reporting progress meanwhile. A failure of one of
 * them (PEER, TIMEOUT) is the end of the job. */
#ifndef CREW_H
#define CREW_H

#include "exchange.h"

#define CREW_HOST 65

typedef struct crew {
	stage_run *run;
	gradcomp_group *nodes; /* acting ranks; NULL alone */
	gradcomp_group *mates; /* ranks of this node; NULL when it has one */
	bool acting;
	bool split; /* nodes is a group of this crew's own */
	exchange_ring ring;
	const gradcomp_links *links[3];
	char (*host)[CREW_HOST]; /* of the nodes */
	const char **hosts;
	gradcomp_status stopped; /* the caller's wish, heard while it could not be followed */
	gradcomp_error stop;
} crew;

/* Finds out who acts. Whatever is returned, to be freed. */
gradcomp_status crew_open(crew *c, stage_run *run, gradcomp_group *group, gradcomp_error *err);
void crew_close(crew *c);

/* Links for a ring, opened when they are needed. */
gradcomp_status crew_ring(crew *c, gradcomp_error *err);

/* What all return who were given OK everywhere; else the failure of the first node
 * that has one, by its name. run->changed becomes that node's, too. */
gradcomp_status crew_agree(crew *c, gradcomp_status status, gradcomp_error *err);
/* Node 0's bytes for all. */
gradcomp_status crew_share(crew *c, void *bytes, size_t n, gradcomp_error *err);
/* bytes[i] = OR over the nodes. */
gradcomp_status crew_or(crew *c, unsigned char *bytes, size_t n, gradcomp_error *err);
/* One row of n bytes a node. */
gradcomp_status crew_gather(crew *c, const void *mine, void *all, size_t n, gradcomp_error *err);
/* The listing of node 0, for all. */
gradcomp_status crew_list(crew *c, stage_manifest *m, gradcomp_error *err);
/* The outcome of the acting rank, for the other ranks of its node. */
gradcomp_status crew_tell(crew *c, gradcomp_stage_result *result, gradcomp_status status, gradcomp_error *err);

/* ---- inside --------------------------------------------------------------- */

/* Makes the call on a thread of its own, while this one reports progress. */
gradcomp_status crew_aside(crew *c, gradcomp_status (*call)(void *ctx, gradcomp_error *err), void *ctx,
                           gradcomp_error *err);

#endif
