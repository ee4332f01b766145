/* One attempt at a copy of one dataset, by one node or by all nodes of a crew. */
#ifndef IO_STAGE_COOP_H
#define IO_STAGE_COOP_H

#include "io/stage/stage_group.h"

typedef struct staging {
	stage_run *run;
	stage_group *stage_group;
	/* What node 0 found, the same everywhere. */
	char key[STAGE_KEY_BYTES];
	char source[4096]; /* as resolved there */
	char file[256];    /* the source is this file; "" for a directory */
	bool mounted;
	uint64_t files, bytes; /* of a shard: its own */

	stage_manifest m; /* empty where there is neither a listing nor a copy */
	source *from;     /* opened where it is needed */
	int area;
	bool cached;
	bool verified;   /* the copy, where that is asked for */
	bool compared;   /* the copies with the source, likewise */
	char stale[508]; /* why the copy that is there does not count */
	uint64_t resumed, read, received;
} staging;

/* Opens the source on this node. */
gradcomp_status staging_open(staging *s, gradcomp_error *err);
/* Until there is a whole copy on every node. */
gradcomp_status staging_complete(staging *s, gradcomp_error *err);

/* ---- inside --------------------------------------------------------------- */

/* What a node has. */
typedef enum staging_state {
	STAGING_LACKS = 0,  /* nothing; somebody else is making it */
	STAGING_LOCKED = 1, /* nothing; the right to make it */
	STAGING_HAS = 2
} staging_state;

/* produce.c: makes the copy where nodes have the right to, out of the copies that there
 * are or else from the source, and publishes it. */
gradcomp_status staging_populate(staging *s, staging_state state, const unsigned char *holders, gradcomp_error *err);
/* compare.c: whether the copies agree with each other and, if that is asked for, with the
 * source; where one does not, s->stale says so. holders: bits by node; *stale: somewhere. */
gradcomp_status staging_compare(staging *s, staging_state state, const unsigned char *holders, bool *stale,
                                gradcomp_error *err);
/* shard.c: leaves in the listing what node i of n has. */
gradcomp_status staging_shard(stage_manifest *m, int i, int n, gradcomp_error *err);

#endif
