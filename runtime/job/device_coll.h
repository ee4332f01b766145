/* Blocking, uncompressed collectives on device memory, of a group: over the collective for devices where
 * that can be used, on the caller's stream; otherwise over the job's, through pinned host memory, in pieces of
 * which one goes down while another is sent. */
#ifndef JOB_DEVICE_COLL_H
#define JOB_DEVICE_COLL_H

#include "device/device.h"
#include "job/job.h"

typedef struct device_coll device_coll;

/* INVALID: of no device that is served. */
gradcomp_status group_memory_options_check(const gradcomp_memory_options *where, gradcomp_error *err);

/* The next channel of the group, with a collective on it, which is the same on all ranks: of the SPEC `named`; NULL: as
 * the settings have it. Collective: where one rank cannot, or would take another collective, all fail, and the job
 * goes on. */
gradcomp_status device_coll_open(gradcomp_group *g, const char *named, device_coll **out, gradcomp_error *err);
/* NULL is fine. */
void device_coll_close(device_coll *c);

/* Returns when the event has come, or the job has failed. `what` begins the error. */
gradcomp_status device_coll_await(gradcomp_job *job, const device_calls *d, void *event, const char *what,
                                  gradcomp_error *err);

/* The collective takes device memory as it is: calls are work on the stream. */
bool device_coll_direct(const device_coll *c);
const device_calls *device_coll_device(const device_coll *c);

typedef enum device_coll_kind {
	DEVICE_ALLREDUCE,
	DEVICE_ALLGATHER,
	DEVICE_REDUCE_SCATTER,
	DEVICE_BROADCAST
} device_coll_kind;

/* A call, as the public functions have it, with arguments that are right. */
typedef struct device_coll_call {
	device_coll_kind kind;
	void *buf;              /* has all blocks */
	const void *in;         /* ALLGATHER: this rank's block, which may be its place in buf */
	void *out;              /* REDUCE_SCATTER: likewise */
	const uint64_t *counts; /* one for each rank's block; ALLREDUCE, BROADCAST: one */
	gradcomp_dtype dtype;
	gradcomp_op op;
	int root;
	void *queue;
} device_coll_call;

/* Comes after what the stream has, and has been done when it returns. */
gradcomp_status device_coll_run(device_coll *c, const device_coll_call *call, gradcomp_error *err);

#endif
