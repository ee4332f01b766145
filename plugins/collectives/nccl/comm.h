/* The nccl collective: its communicator, and what its calls are made of. */
#ifndef PLUGINS_COLLECTIVES_NCCL_COMM_H
#define PLUGINS_COLLECTIVES_NCCL_COMM_H

#include <cuda_runtime_api.h>
#include <nccl.h>
#include <pthread.h>

#include "gradcomp/collective.h"
#include "plugins/common/collectives/direct.h"
#include "plugins/common/collectives/ring.h"
#include "plugins/common/collectives/tree.h"

/* NCCL's functions. It is looked for when the first payload in CUDA memory comes, so
 * that the plugin can be listed and looked at anywhere. */
/* clang-format off */
#define NCCL_FUNCTIONS(F) \
	F(ncclGetUniqueId) F(ncclCommInitRankConfig) F(ncclCommSplit) F(ncclCommFinalize) F(ncclCommDestroy) F(ncclCommAbort) \
	F(ncclCommGetAsyncError) F(ncclGetErrorString) F(ncclGetLastError) F(ncclAllReduce) F(ncclReduce) \
	F(ncclReduceScatter) F(ncclAllGather) F(ncclBroadcast) F(ncclSend) F(ncclRecv) F(ncclGroupStart) \
	F(ncclGroupEnd) F(ncclGetVersion)
/* clang-format on */

typedef struct nccl_functions {
#define NCCL_POINTER(name) __typeof__(&name) name;
	NCCL_FUNCTIONS(NCCL_POINTER)
#undef NCCL_POINTER
} nccl_functions;

typedef struct nccl {
	const gradcomp_host *host;
	const gradcomp_links *links;
	ring *ring; /* for host memory, and for meeting */
	direct *direct;
	tree *tree; /* for merging, whose order is its */
	nccl_functions f;
	const gradcomp_operators *ops; /* the device's */
	ncclComm_t comm;               /* of one that is split off, a thread of NCCL's writes it there */
	/* Two queues are taken by turns at most. NCCL does what a communicator has on both in the order of calls. */
	cudaStream_t queue, other_queue;
	cudaEvent_t event;
	int enqueues;          /* calls return when their work is on the stream */
	int owes, more;        /* the event is to come; there is work behind it */
	double since;          /* when it was recorded */
	char last[96];         /* NCCL was asked for this last */
	double timeout;        /* s */
	gradcomp_error failed; /* every call after the first failure gives it */
	struct nccl *with;     /* the next of those whose work is on the same stream, around; NULL: there are none */
	cudaEvent_t *latest;   /* theirs: what any of them has communicated last is over; NULL: there are none */
	int dividing;          /* something is being split off it */
	pthread_t aborter;     /* a thread that aborts it ... */
	int aborting;          /* ... if there is one */
	char *scratch;         /* device memory, of the queue; and the other one's */
	size_t scratch_bytes;
	char *other_scratch;
	size_t other_scratch_bytes;
	/* Blocks that were too short, kept until the end: work on the stream may use one, and to free it waits for the
	 * device. Each is at least twice as long as the one before. */
	void *outgrown[128];
	unsigned noutgrown;
} nccl;

/* Why NCCL cannot be had in this process; NULL: it can. */
const char *nccl_unusable(void);

/* Returns 1 when a buffer is in memory of a device. */
int nccl_on_device(const void *buf);
/* Before anything is asked of NCCL: the communicator is made the first time, so all
 * ranks come here together. */
gradcomp_status nccl_ready(nccl *n, gradcomp_error *err);
/* The communicator of those ranks of n, which is ready, that name the same colour, in the order of their links: n's
 * ranks all come here. *out is NULL on a rank that is in none; else it has its host, links, timeout and queue. */
gradcomp_status nccl_split(nccl *n, nccl *out, int colour, gradcomp_error *err);
/* Where NCCL sends from and receives to stands on such boundaries: off 16 it moves single bytes. */
static inline size_t nccl_rounded(uint64_t bytes)
{
	return (bytes + 63) & ~(size_t)63;
}
/* A communicator that does not block may say either, of any call, also within a group. */
static inline int nccl_going(ncclResult_t rc)
{
	return rc == ncclSuccess || rc == ncclInProgress;
}
/* The first of two results that is a failure. A group that was begun is always ended: after a
 * failure NCCL then launches nothing of it. */
static inline ncclResult_t nccl_both(ncclResult_t first, ncclResult_t then)
{
	return nccl_going(first) ? then : first;
}
/* After NCCL was asked for something: waits until it is on the stream. `what` is the
 * end of "rank 3 was waiting for NCCL to ...". */
gradcomp_status nccl_launched(nccl *n, ncclResult_t rc, const char *what, gradcomp_error *err);
/* Waits until all that is on the stream has been done; but not when calls enqueue. */
gradcomp_status nccl_done(nccl *n, const char *what, gradcomp_error *err);
/* Does what watch() in collective.h says. */
gradcomp_status nccl_watch(nccl *n, int *busy, gradcomp_error *err);
/* Puts all work from now on on `queue`, and takes that one's scratch memory. */
void nccl_take_queue(nccl *n, cudaStream_t queue);
/* Makes sure `scratch` holds `bytes`; its content is lost. Waits for nothing. */
gradcomp_status nccl_reserve(nccl *n, size_t bytes, gradcomp_error *err);
/* gpus.c: whether the ranks, which all come here and have NCCL of this version, have GPUs that it lets them have. On
 * all of them or none. */
gradcomp_status nccl_own_gpus(nccl *n, int version, gradcomp_error *err);
void nccl_close(nccl *n);

/* primitives.c, merge.c and coded.c: as in collective.h, on device memory. */
gradcomp_status nccl_allreduce(nccl *n, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op, double scale,
                               gradcomp_error *err);
gradcomp_status nccl_reduce_scatter(nccl *n, void *buf, const uint64_t *counts, gradcomp_dtype dtype, gradcomp_op op,
                                    double scale, gradcomp_error *err);
gradcomp_status nccl_allgather(nccl *n, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status nccl_alltoall(nccl *n, const void *in, const uint64_t *in_bytes, void *out, const uint64_t *out_bytes,
                              gradcomp_error *err);
gradcomp_status nccl_broadcast(nccl *n, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status nccl_merge(nccl *n, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                           gradcomp_error *err);
gradcomp_status nccl_coded_allreduce(nccl *n, float *buf, uint64_t count, double scale, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err);
gradcomp_status nccl_coded_reduce_scatter(nccl *n, float *buf, const uint64_t *counts, double scale,
                                          const gradcomp_codec *codec, uint64_t counter, float *residual,
                                          gradcomp_error *err);
gradcomp_status nccl_coded_allgather(nccl *n, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                     uint64_t counter, float *residual, gradcomp_error *err);

#endif
