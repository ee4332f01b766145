/* The files of this folder share this: one attempt at a copy of one dataset, by one node or by all nodes of a
 * group. */
#ifndef IO_STAGE_STAGE_INTERNAL_H
#define IO_STAGE_STAGE_INTERNAL_H

#include "io/stage/stage_group.h"

typedef struct staging {
	stage_run *run;
	stage_group *group;
	/* Node 0 found these, the same everywhere. */
	char key[STAGE_KEY_BYTES];
	char source[4096]; /* resolved there */
	char file[256];    /* the source is this file; "" for a directory */
	bool mounted;
	uint64_t files, bytes; /* the whole dataset's; a shard's: its own */

	stage_manifest m; /* empty where there is neither a listing nor a copy */
	source *from;     /* opened where it is needed */
	int area;
	bool shared; /* the area is that of all users, which this one cannot write to */
	bool cached;
	bool verified;   /* the copy, where that is asked for */
	bool compared;   /* the copies were compared with the source, likewise */
	char stale[508]; /* why the copy on this node is not used */
	uint64_t resumed, read, received, left_out;
	char *left_out_text; /* the text in the manifest of node 0; NULL: nothing was */
} staging;

/* A node is in one of these states. */
typedef enum staging_state {
	STAGING_LACKS = 0,  /* nothing; another process is making it */
	STAGING_LOCKED = 1, /* nothing; this process has the lock and may make it */
	STAGING_HAS = 2
} staging_state;

/* Works until there is a whole copy on every node. */
gradcomp_status stage_complete(staging *s, gradcomp_error *err);
/* Leaves in the listing the entries of node i of n. */
gradcomp_status stage_shard(stage_manifest *m, int i, int n, gradcomp_error *err);

/* Lists the tree of a source; m->source must be set. */
gradcomp_status stage_list(stage_run *run, stage_manifest *m, source *from, gradcomp_error *err);
/* Opens the source on this node, the first time. */
gradcomp_status stage_open(staging *s, gradcomp_error *err);

/* Makes the copy on the nodes that have the lock, from other nodes' copies or else from the
 * source, and publishes it. holders: nodes with a copy, bits by node. */
gradcomp_status stage_populate(staging *s, staging_state state, const unsigned char *holders, gradcomp_error *err);
/* Refuses a dataset for which there is no space now; for a dry run. */
gradcomp_status stage_check_space(stage_run *run, const stage_manifest *m, int area, gradcomp_error *err);

/* Compares the copies with each other and, if that is asked for, with the source; where one does not, s->stale says
 * so. *stale: one of them does not. */
gradcomp_status stage_compare(staging *s, staging_state state, const unsigned char *holders, bool *stale,
                              gradcomp_error *err);

#endif
