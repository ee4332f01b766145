/* Before a reducer is made, all ranks show what they are about to do. A rank that
 * cannot go on says so here, so that no other waits for it. */
#ifndef REDUCER_CONSENSUS_H
#define REDUCER_CONSENSUS_H

#include "gradcomp/compressor.h"
#include "job/job.h"
#include "plugin/registry.h"

/* Describes what a rank is about to make. */
typedef struct reducer_request {
	const gradcomp_layout *layout;
	const char *compressor, *collective, *schedule; /* SPECs */
	const char *aside;                              /* why it is not the collective for devices, or NULL */
	/* the collective is one for devices, but serves their payloads in host memory, for that reason */
	bool through_host;
	const plugin *plugins[2]; /* NULL: those of the reducers behind declare them */
	uint64_t schedule_hash;   /* hash of what the SPEC of the schedule does not say */
	uint64_t bucket_bytes, first_bucket_bytes;
	uint32_t delay;
	bool verify;
} reducer_request;

/* `mine` is this rank's status so far, with `err` when it is not OK; then *q is not looked at.
 * Every rank of the group calls it; all return an error when one does. */
gradcomp_status reducer_consensus(gradcomp_group *g, const reducer_request *q, gradcomp_status mine,
                                  gradcomp_error *err);

#endif
