/* gradcomp/gradcomp.h: the application's interface.
 *
 * A program joins its job, makes a reducer for the tensors of its model, tells
 * it when each gradient is ready, and gets the average over all ranks in the
 * same memory:
 *
 *     gradcomp_job *job;
 *     gradcomp_reducer *red;
 *     gradcomp_job_create(NULL, &job, &err);
 *     gradcomp_reducer_create(gradcomp_job_world(job), tensors, n, NULL, &red, &err);
 *     for (...) {
 *             for (i = n; i-- > 0;)                     // as backward yields them
 *                     gradcomp_reducer_ready(red, i, grad[i], &err);
 *             gradcomp_reducer_wait(red, &err);         // grad[i] is the average now
 *     }
 *     gradcomp_reducer_free(red);
 *     gradcomp_job_free(job, &err);
 *
 * Which compressor, collective and settings: the srun option, then the
 * environment, then the site's gradcomp.conf, then defaults; see
 * gradcomp.conf(5).
 *
 * Threads. Objects of different jobs are independent. Calls on one job's groups
 * and reducers may come from any thread; calls that communicate on one group
 * must be made in the same order on all its ranks, so a program that uses
 * several threads gives each its own group. The library starts a few threads a
 * job, which block all signals.
 *
 * Failures. When a rank dies, leaves or stops answering, every pending and
 * later call on the job fails with GRADCOMP_ERR_PEER or _TIMEOUT and a text that
 * names the rank and its host. The job cannot be used again; free it. With
 * gradcomp.on_failure=shrink the status is GRADCOMP_ERR_PEER_LOST, and the job may go on
 * without the rank: gradcomp_job_shrink(), which also says whether the call that failed is to be repeated. A rank
 * that lives and takes no part for transport.wait_timeout is GRADCOMP_ERR_TIMEOUT and ends the job in any case.
 *
 * fork(). A child must not use objects it inherited.
 *
 * Errors. Every function says under "Errors:" what it returns beside GRADCOMP_OK, without the prefix GRADCOMP_ERR_.
 * Where a list says nothing of arguments, one that is NULL or out of range is INVALID all the same, and NOMEM comes
 * wherever memory cannot be had. "A failure" is what any call that needs other ranks may return: PEER,
 * TIMEOUT or PEER_LOST as above, IO for a socket or device, AUTH, and MISMATCH for ranks that do not make the same call.
 *
 * The file is in the order of use: 1. what every program needs, 2. groups, 3. frameworks, 4. tools, 5. what is
 * experimental. Plugins include compressor.h or collective.h instead.
 */
#ifndef GRADCOMP_H
#define GRADCOMP_H

#include "gradcomp/abi.h"

/* Marks what may change from one release to the next. A program that defines GRADCOMP_WARN_EXPERIMENTAL before it
 * includes this is warned where it calls such a function. */
#if defined(GRADCOMP_WARN_EXPERIMENTAL) && defined(__GNUC__)
#define GRADCOMP_EXPERIMENTAL __attribute__((deprecated("experimental: it may change in the next release")))
#else
#define GRADCOMP_EXPERIMENTAL
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct gradcomp_job gradcomp_job;
typedef struct gradcomp_group gradcomp_group;
typedef struct gradcomp_reducer gradcomp_reducer;

/* 1. What every program needs
 * A job, a reducer, gradients that go in and averages that come out, and checkpoints. */

/* Returns the version of the library in use, as "1.2.3". Never freed. Errors: none. */
GRADCOMP_EXPORT const char *gradcomp_version(void);

/* Returns a few words for a status. Never NULL, never freed. Errors: none. */
GRADCOMP_EXPORT const char *gradcomp_strerror(gradcomp_status status);

/* 1 when this process runs under --gradcomp or GRADCOMP is set to anything but
 * "off" and "", else 0. Needs no job.
 * Errors: none. */
GRADCOMP_EXPORT int gradcomp_requested(void);

typedef struct gradcomp_job_options {
	uint32_t struct_size;
	uint32_t reserved0;
	/* NULL: PMIx when the process was started by a PMIx server, else a job of one
	 * rank. The store is used during gradcomp_job_create only. */
	const struct gradcomp_store *store;
	/* NULL or settings "section.key=value" that win over everything, ended by
	 * NULL. */
	const char *const *settings;
} gradcomp_job_options;

/* Joins the job. Collective over all ranks: returns when all have joined, or fails within `transport.timeout`, also
 * with gradcomp.on_failure=shrink: there is no job yet that could go on. `options` may be NULL. On failure *job is
 * NULL.
 * Errors: INVALID: a setting, a SPEC or what a store says is wrong. NOTFOUND: a setting, plugin or file is not
 * there. INSECURE: others could have written gradcomp.conf or a plugin. ABI: a plugin of another ABI. UNSUPPORTED:
 * what is asked for was not built in, or settings or plugins do not go together. AUTH: a rank without the job's
 * secret. MISMATCH: ranks differ in what they ask for. IO, TIMEOUT, PEER: a rank cannot be reached, does not come,
 * or has gone. */
GRADCOMP_EXPORT gradcomp_status gradcomp_job_create(const gradcomp_job_options *options, gradcomp_job **job,
                                                    gradcomp_error *err);

/* Leaves the job: waits for the other ranks to leave too, writes the report
 * (rank 0) and frees everything. Groups, links and reducers must have been freed, else
 * GRADCOMP_ERR_STATE and nothing is done. NULL is fine. The job is gone whatever
 * else is returned: GRADCOMP_ERR_IO when the
 * report could not be written, PEER or TIMEOUT when another rank never came.
 * Errors: STATE: groups, links, coders, datasets or reducers are left; nothing is done. IO: the report could not be
 * written. PEER, TIMEOUT: another rank never came. */
GRADCOMP_EXPORT gradcomp_status gradcomp_job_free(gradcomp_job *job, gradcomp_error *err);

/* Returns this rank, 0 to nranks - 1. Errors: none. */
GRADCOMP_EXPORT int gradcomp_job_rank(const gradcomp_job *job);

/* Returns how many ranks the job has. Errors: none. */
GRADCOMP_EXPORT int gradcomp_job_nranks(const gradcomp_job *job);

/* Returns the group of all ranks. Owned by the job. Errors: none. */
GRADCOMP_EXPORT gradcomp_group *gradcomp_job_world(gradcomp_job *job);

/* A tensor as the application declares it, in forward (registration) order. */
typedef struct gradcomp_tensor_desc {
	const char *name;     /* copied; NULL: named by its index */
	const uint64_t *dims; /* copied; ndim of them */
	uint32_t ndim;
	gradcomp_dtype dtype; /* F32, F16 or BF16 */
} gradcomp_tensor_desc;

typedef struct gradcomp_reducer_options {
	uint32_t struct_size;
	uint32_t reserved0;
	const char *compressor; /* SPEC, or auto, or SPECs by name: GLOB=SPEC[@COLLECTIVE]+...; NULL: the job's */
	const char *collective; /* SPEC; NULL: the job's, of gradients on a GPU gradcomp.device_collective */
	uint64_t bucket_bytes;  /* 0: setting reducer.bucket_bytes, and 1M of the first; else of all */
	uint64_t seed;          /* must be equal on all ranks */
	/* Called once for every tensor whose average is in place, on a thread of the
	 * library, or with a negative status and `err` when the step has failed.
	 * Must not call into the reducer, but for gradcomp_reducer_follow(). To return soon: the reducer's
	 * other tensors wait for it, and those of other reducers for 50 ms. May be NULL. */
	void (*done)(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err);
	void *ctx;
	gradcomp_device device; /* where gradients live */
	uint32_t reserved1;
	/* GRADCOMP_CUDA: the stream (cudaStream_t) that makes gradients; NULL: the default one.
	 * What was put on it before ready() comes before the tensor is read. A tensor is done when
	 * all work for its average is on the device, not when that is over: what is put on
	 * this stream after wait() or wait_for() comes after it, on another one after
	 * gradcomp_reducer_follow(). Whether the work failed, a later call says. The device
	 * is the one that was current when the reducer was made. */
	void *queue;
	const char *schedule; /* SPEC of how gradients are merged; NULL: the setting gradcomp.schedule */
	/* Averages may be applied up to so many steps late (delayed gradient averaging: Zhu et al.,
	 * NeurIPS 2021); 0: none is. At most 64, equal on all ranks; takes delay + 1
	 * times the model's memory, where gradients live. See gradcomp_reducer_drain(). */
	uint32_t delay;
	uint32_t reserved2;
	/* Called in place of `done`, if not NULL, once for each run of tensors that are done
	 * together: first, first + 1, ... first + n - 1. */
	void (*done_run)(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err);
	/* GRADCOMP_CUDA: where the reducer's device memory comes from, such as a framework's caching
	 * allocator; both, or NULL: cudaMalloc() and cudaFree(). On all ranks or on some. `bytes` bytes that
	 * begin at a multiple of 16, or NULL when there are none: the step, or the creation, fails then.
	 * The first work on them is put on the stream (cudaStream_t) `stream`, or comes after such work.
	 * They are released when no work on them is left. Called on the thread that makes or frees the
	 * reducer and on threads of the library, with the reducer's device current; must not call into
	 * the reducer. */
	void *(*device_alloc)(void *device_ctx, size_t bytes, void *stream);
	void (*device_release)(void *device_ctx, void *p);
	void *device_ctx;
} gradcomp_reducer_options;

/* Collective over `group`: checks that all ranks declared the same tensors and
 * the same SPEC (GRADCOMP_ERR_MISMATCH names the ranks that differ), loads the
 * plugins, lays out the arena. Memory that stays: 4 bytes a parameter with a
 * compressor that keeps error memory, else none beside the workspace of the
 * buckets in flight.
 * Errors: INVALID: a tensor, an option or a SPEC is wrong. NOTFOUND, INSECURE, ABI: a plugin, as for
 * gradcomp_job_create(). UNSUPPORTED: compressor, collective, type or device do not go together. RANGE: more numbers
 * than can be counted. MISMATCH: ranks declare other tensors or options. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_create(gradcomp_group *group, const gradcomp_tensor_desc *tensors,
                                                        uint32_t ntensors, const gradcomp_reducer_options *options,
                                                        gradcomp_reducer **out, gradcomp_error *err);

/* Waits for the step in flight, if all of its tensors were handed over; a step
 * that lacks some is given up, which fails the job on all ranks. Local. NULL is
 * fine.
 * Errors: none. */
GRADCOMP_EXPORT void gradcomp_reducer_free(gradcomp_reducer *reducer);

/* Gives the gradient of tensor `index` (its index in the declaration) to the
 * reducer; its memory (numel elements of the declared type, contiguous) is the
 * reducer's until the tensor is done, and then holds the average over ranks.
 * Any order, any thread. Does not block. Each tensor once a step; a step ends
 * when all were given and reduced. A second ready() of a tensor before that is
 * GRADCOMP_ERR_STATE and fails the job on all ranks: an iteration that was given up
 * half-way must not be averaged together with the next one.
 * Errors: INVALID: no such tensor, or NULL. STATE: the tensor was given in this step, or a shrink is at work. Else
 * the failure that the step has had. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_ready(gradcomp_reducer *reducer, uint32_t index, void *gradient,
                                                       gradcomp_error *err);

/* Returns when all tensors of the step are done. GRADCOMP_ERR_STATE when some
 * were never given (the text names one).
 * Errors: STATE: some tensors were never given (the text names one). Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_wait(gradcomp_reducer *reducer, gradcomp_error *err);

/* Saves this rank's state (error memory, plugin state, step, plan of buckets) as a byte string, to go into a
 * checkpoint. Between steps only. With buf NULL only *bytes is set.
 * Errors: STATE: within a step. INVALID: capacity is less than *bytes. Else a failure that the job has had. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_save(gradcomp_reducer *reducer, void *buf, uint64_t capacity,
                                                      uint64_t *bytes, gradcomp_error *err);

/* Takes up a state, of either kind. Collective: all ranks load states of one step and one kind.
 * A rank's own goes to the same rank of an equal reducer, of whatever bucket size: the next step
 * continues to the bit, with the saved plan. A shared one, the same on all ranks, goes to a
 * reducer of the same tensors and compressor, with any number of ranks and nodes, any collective
 * and buckets. When one rank cannot, none does, and the reducers are as before:
 * GRADCOMP_ERR_INVALID for bytes that are no state or damaged, _MISMATCH for one of another
 * compressor, model, rank or step, _STATE within a step; on the other ranks the same, with the
 * rank that cannot.
 * Errors: INVALID: no state, or damaged. MISMATCH: of another compressor, model, rank or step. UNSUPPORTED: of
 * another version. STATE: within a step. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_load(gradcomp_reducer *reducer, const void *buf, uint64_t bytes,
                                                      gradcomp_error *err);

/* Counters since creation. Times are seconds summed over buckets. */
typedef struct gradcomp_reducer_stats {
	uint32_t struct_size; /* set by the caller */
	uint32_t buckets;
	uint64_t steps;
	uint64_t nonfinite_steps;
	double dense_bytes; /* `none` + ring would have sent so many from this rank */
	double wire_bytes;  /* payload bytes handed to the links by this rank */
	double encode_s, exchange_s, decode_s;
	double exposed_s; /* from the last gradient given to the end of the step */
	/* |e| / |u|: the share that stayed in this rank's error memory, of what was to be sent; read from a sample.
	 * A compressor without error memory has none, nor a step with NaN. */
	uint64_t error_steps;
	double error_mean, error_last; /* over error_steps, and of the last of them */
} gradcomp_reducer_stats;

/* Fills *stats, whose struct_size is set. Errors: none. */
GRADCOMP_EXPORT void gradcomp_reducer_get_stats(const gradcomp_reducer *reducer, gradcomp_reducer_stats *stats);

/* A reducer has these phases of work on a bucket, in one round or several. */
typedef enum gradcomp_phase { GRADCOMP_ENCODE = 0, GRADCOMP_EXCHANGE = 1, GRADCOMP_DECODE = 2 } gradcomp_phase;

/* A phase of a bucket begins (1) or has ended (0), on this thread of the library. */
typedef void gradcomp_phase_watcher(void *ctx, gradcomp_phase phase, uint32_t bucket, int begins);

/* Has `watch` called for the phases of all reducers of this process, in place of the one before; NULL: of none any more.
 * For profilers. When this returns the one before is not at work any more, nor will be. A watcher is to return soon and must
 * not call into the library; a phase may have begun before it came. Reducers whose work a device does by itself tell
 * nothing. Any thread.
 * Errors: none. */
GRADCOMP_EXPORT void gradcomp_watch_phases(gradcomp_phase_watcher *watch, void *ctx);

/* 2. Groups and plain collectives
 * Parts of a job, and calls on them that are blocking and uncompressed and go through the job's collective plugin.
 * Counts are elements. A call with a count of 0 still takes part. */

/* Ranks that pass the same colour (>= 0) form a group, ordered by key, then by
 * their rank in `parent`. Colour -1: in none, *out = NULL. Collective over
 * `parent`: an all-gather of 12 bytes a rank; nothing is connected before the new
 * group is used. A colour below -1 fails on all ranks, which may go on. Groups may
 * overlap and be at work at the same time, each on a thread of its own; a group
 * may outlive its parent.
 * Errors: INVALID: a colour below -1 on some rank; all may go on. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_split(gradcomp_group *parent, int colour, int key, gradcomp_group **out,
                                                     gradcomp_error *err);

/* Makes the group of ranks[0..nranks-1] of `parent`, in this order, which this rank is one of. Nothing is said to
 * anybody: those ranks alone call it, each with the same list, and as often as the others with that list.
 * Errors: INVALID: a rank that is not of the parent, is there twice, or not this one among them. Else the failure
 * that the job has had. */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_create(gradcomp_group *parent, const int *ranks, int nranks,
                                                      gradcomp_group **out, gradcomp_error *err);

/* Frees a group. Local, when no function is at work on the group on any thread; its reducers and links have been
 * freed. Calls that were started and have not ended are given up, as by gradcomp_group_abort(). NULL and the world are
 * ignored.
 * Errors: none. */
GRADCOMP_EXPORT void gradcomp_group_free(gradcomp_group *group);

/* Returns this rank's number in the group. Errors: none. */
GRADCOMP_EXPORT int gradcomp_group_rank(const gradcomp_group *group);

/* Returns how many ranks the group has. Errors: none. */
GRADCOMP_EXPORT int gradcomp_group_nranks(const gradcomp_group *group);

/* Rank in the world of rank r of the group; -1 when there is no such rank. Errors: -1: there is no such rank. */
GRADCOMP_EXPORT int gradcomp_group_world_rank(const gradcomp_group *group, int r);

/* buf = OP over all ranks, in place.
 * Errors: INVALID: NULL for a buffer that has elements, a type or an operation that is none. UNSUPPORTED: the
 * collective does not serve it. RANGE: more bytes than can be counted. MISMATCH: ranks differ in a count or a type.
 * Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_allreduce(gradcomp_group *group, void *buf, uint64_t count,
                                                   gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err);

/* out holds nranks blocks; block r has counts[r] elements (counts equal on all
 * ranks). `in` is this rank's block and may be its place in `out`.
 * Errors: as of gradcomp_allreduce(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_allgather(gradcomp_group *group, const void *in, void *out,
                                                   const uint64_t *counts, gradcomp_dtype dtype, gradcomp_error *err);

/* in holds nranks blocks and is used as workspace; on return `out` has this
 * rank's reduced block, counts[rank] elements.
 * Errors: as of gradcomp_allreduce(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_reduce_scatter(gradcomp_group *group, void *in, void *out,
                                                        const uint64_t *counts, gradcomp_dtype dtype, gradcomp_op op,
                                                        gradcomp_error *err);

/* Gives all ranks what buf holds on rank `root`.
 * Errors: as of gradcomp_allreduce(); INVALID also for a root that is no rank. */
GRADCOMP_EXPORT gradcomp_status gradcomp_broadcast(gradcomp_group *group, void *buf, uint64_t count,
                                                   gradcomp_dtype dtype, int root, gradcomp_error *err);

/* Returns when all ranks have called it. Errors: UNSUPPORTED: the collective does not serve it. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_barrier(gradcomp_group *group, gradcomp_error *err);

/* Calls of all kinds, on host memory: what MPI and torch.distributed have. One structure describes a call of whatever
 * kind, and is used in two ways:
 *
 *     gradcomp_call c = {.struct_size = sizeof c, .kind = GRADCOMP_CALL_ALLREDUCE, .dtype = GRADCOMP_I64,
 *                        .op = GRADCOMP_PRODUCT, .in = x, .out = x, .count = n};
 *     gradcomp_group_call(group, &c, &err);                  // returns when it has ended
 *
 *     gradcomp_group_start(group, &c, &request, &err);       // returns at once
 *     ...
 *     gradcomp_group_wait(request, -1, NULL, &err);          // how it ended
 *     gradcomp_group_request_free(request);
 *
 * Collectives (all kinds but SEND and RECV) of one group are carried out one after another, in the order in which they
 * were started or called, those of the functions above among them: all ranks of the group make the same ones in the
 * same order. As many may be in flight as the program likes. They are carried out by the thread that waits for one of
 * them, or else by a thread of the group's, so that they go on while the program computes. Those of two groups do not
 * wait for each other.
 *
 * Messages (SEND and RECV) are beside that: they wait for no collective and for no other message. A receive takes the
 * first message sent to this rank on this group that it matches, by source and tag, and which no earlier receive takes;
 * messages with one tag between two ranks are received in the order in which they were started. A send ends when its
 * buffer may be used again: up to 64 KiB that may be before the receive has been started, above it is after that.
 *
 * Memory. What a call points to (buffers, counts, arrays of blocks, `from`, `got`) is the call's until it has ended; the
 * structure itself may go when the function has returned. `in` is only read, unless it is `out`. */
typedef enum gradcomp_call_kind {
	/* No rank leaves before all have entered. */
	GRADCOMP_CALL_BARRIER = 0,
	/* out = OP over ranks of `in`; count elements each. `in` NULL: it is in `out`, as with in == out. */
	GRADCOMP_CALL_ALLREDUCE = 1,
	/* The same on rank `peer` alone. Elsewhere `out` is not touched, and may be NULL; but where `in` is NULL or
	 * `out`, what is there afterwards is undefined. */
	GRADCOMP_CALL_REDUCE = 2,
	/* out on all ranks = what rank `peer` has in `in`, or with `in` NULL in `out`. count elements. */
	GRADCOMP_CALL_BROADCAST = 3,
	/* out: nranks blocks one after another, block r is what rank r has in `in`. Blocks have count elements, or
	 * out_counts[r], equal on all ranks. `in` may be its place in `out`; NULL: it is there. */
	GRADCOMP_CALL_ALLGATHER = 4,
	/* The same on rank `peer` alone; elsewhere `out` is not looked at, and out_counts may be NULL and count this
	 * rank's own. On `peer` `in` NULL: it is in its place. */
	GRADCOMP_CALL_GATHER = 5,
	/* Block r of `in` on rank `peer` goes to `out` of rank r. Blocks have count elements, or in_counts[r]; on other
	 * ranks in_counts may be NULL and count this rank's own. On `peer` `out` NULL: its own block stays in its
	 * place. */
	GRADCOMP_CALL_SCATTER = 6,
	/* out = OP over ranks of their block of this rank in `in`, which holds nranks blocks of count elements, or
	 * in_counts[r], equal on all ranks. `out` may be its place in `in`. See also GRADCOMP_CALL_OVERWRITE. */
	GRADCOMP_CALL_REDUCE_SCATTER = 7,
	/* Block r of `in`, of count or in_counts[r] elements, goes to rank r; block r of `out`, of count or
	 * out_counts[r], comes from rank r. They do not overlap. */
	GRADCOMP_CALL_ALLTOALL = 8,
	/* count elements of `in` go to rank `peer`, with `tag`. Not to this rank itself. */
	GRADCOMP_CALL_SEND = 9,
	/* A message of at most count elements comes into `out`, from rank `peer` or, with GRADCOMP_ANY_RANK, from
	 * whatever rank has sent one with this tag first. A longer one is MISMATCH, and is gone. */
	GRADCOMP_CALL_RECV = 10
} gradcomp_call_kind;

/* RECV: from any rank of the group. */
#define GRADCOMP_ANY_RANK (-1)
/* A flag: REDUCE_SCATTER may use `in` for workspace, which saves a copy; its content is undefined afterwards. */
#define GRADCOMP_CALL_OVERWRITE (1u << 0)

/* Describes a call. What a kind does not name is not looked at and may be 0. Ranks are those of the group. */
typedef struct gradcomp_call {
	uint32_t struct_size; /* set by the caller */
	uint32_t kind;        /* gradcomp_call_kind */
	/* A gradcomp_dtype: F32, F64, F16, BF16, I8, U8, I16, I32 or I64 where numbers are reduced, else any. */
	uint32_t dtype;
	/* ALLREDUCE, REDUCE, REDUCE_SCATTER: a gradcomp_op; BAND, BOR and BXOR of integers alone. Integers wrap
	 * around. Sums of F16 and BF16 are rounded to the type after every addition. */
	uint32_t op;
	int32_t peer;   /* the root, or the other rank of a message */
	uint32_t flags; /* GRADCOMP_CALL_OVERWRITE, else 0 */
	const void *in;
	void *out;
	uint64_t count;             /* elements; with 0 the call still takes part */
	const uint64_t *in_counts;  /* elements of the nranks blocks of `in`; NULL: count for each */
	const uint64_t *out_counts; /* likewise of `out` */
	/* nranks pointers to blocks that are not one after another; NULL: they are. in_blocks in place of `in` of
	 * SCATTER, REDUCE_SCATTER and ALLTOALL; out_blocks in place of `out` of ALLGATHER, GATHER and ALLTOALL. */
	const void *const *in_blocks;
	void *const *out_blocks;
	uint64_t tag; /* of a message: any number */
	/* Floating types with SUM or AVG: this rank's numbers are multiplied by it first (a premultiplied sum), and
	 * rounded to the type. It may differ from rank to rank. 0: as 1. */
	double factor;
	/* Seconds from the start that the call may take. 0: no limit of its own, and a rank that lives and takes no
	 * part for transport.wait_timeout fails the job. A message that has not been matched by then is taken back and
	 * nothing else happens; any other call ends the group, as gradcomp_group_abort() does, and the job goes on.
	 * Either returns TIMEOUT. */
	double timeout;
	int32_t *from; /* RECV: the rank that the message came from; may be NULL */
	uint64_t *got; /* RECV: elements that came; may be NULL */
	/* Called once when a call that was started has ended, with how it ended: on a thread of the library's, or on one
	 * that waits for a call of the group. Must not wait for, free or abort anything of the group. May be NULL. */
	void (*done)(void *ctx, gradcomp_status status, const gradcomp_error *err);
	void *ctx;
} gradcomp_call;

/* A call in flight, or ended. Freed by gradcomp_group_request_free(), also after its group. */
typedef struct gradcomp_group_request gradcomp_group_request;

/* Carries out a call and returns when it has ended. Any thread. `call` need not outlive the function.
 *
 * A rank that dies or leaves the job ends every call of every group that is in flight on any rank, with its name, as
 * everywhere. A rank that has freed or given up the group (gradcomp_group_abort()) ends the calls of the others that
 * wait for it, and the group, with PEER and its name; other groups go on. Only a collective that waits for a rank which
 * has freed the group in good order, and had never met this one on it, ends at its limit.
 * Errors: INVALID, UNSUPPORTED, RANGE: an argument, found before anything is sent: nothing has happened. STATE: the
 * group has been given up on this rank, or this process was forked off the rank. MISMATCH: ranks make other calls, or
 * counts differ. TIMEOUT, PEER: as said. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_call(gradcomp_group *group, const gradcomp_call *call,
                                                    gradcomp_error *err);

/* Starts a call and returns at once. *request: to be freed once. On failure it is NULL and nothing has been started.
 * Any thread; the order of calls is that in which this function is entered, which threads settle among themselves.
 * Errors: INVALID, UNSUPPORTED, RANGE, STATE and NOMEM as of gradcomp_group_call(); the others are found by test() and
 * wait(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_start(gradcomp_group *group, const gradcomp_call *call,
                                                     gradcomp_group_request **request, gradcomp_error *err);

/* *done = 1 when the call has ended, well or not, else 0. Never sleeps. Returns how it ended; GRADCOMP_OK while it goes
 * on. Any thread, as often as wanted.
 * Errors: those of gradcomp_group_call(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_test(gradcomp_group_request *request, int *done, gradcomp_error *err);

/* Returns when the call has ended, and how; or when `seconds` (negative: no limit) are over, with TIMEOUT and *done = 0,
 * and the call goes on. done may be NULL. Any thread, several at a time, as often as wanted.
 * Errors: those of gradcomp_group_call(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_wait(gradcomp_group_request *request, double seconds, int *done,
                                                    gradcomp_error *err);

/* Frees a request when its call has ended: waits for that, without a limit. NULL is fine. Errors: none. */
GRADCOMP_EXPORT void gradcomp_group_request_free(gradcomp_group_request *request);

/* Gives a group up on this rank: its calls in flight and all later ones end with STATE and `text` (copied; NULL: a text
 * that says so), within milliseconds, and buffers are the caller's again when their calls have ended. Other ranks that
 * wait for this one on this group end with PEER and its name. Other groups and the job go on; what is left to do with
 * this one is gradcomp_group_free(). Not for the world of a job that may go on without ranks
 * (gradcomp.on_failure=shrink). Local; any thread, beside any call.
 * Errors: STATE: of such a world. */
GRADCOMP_EXPORT gradcomp_status gradcomp_group_abort(gradcomp_group *group, const char *text, gradcomp_error *err);

/* Where the buffers of a call are. */
typedef struct gradcomp_memory_options {
	uint32_t struct_size;
	gradcomp_device device; /* equal on all ranks */
	/* GRADCOMP_CUDA: the caller's stream (cudaStream_t) on the device that is current; NULL: the default one. */
	void *queue;
} gradcomp_memory_options;

/* Does the same with memory that `where` tells of; NULL: host memory. With GRADCOMP_CUDA a call is as if it were
 * put on the stream: it reads what was put there before it, and what is put there later comes after it. It returns
 * when that has been done. Over gradcomp.device_collective (nccl) where the settings name no collective and all
 * ranks can use it, so that nothing goes through host memory; over another one in pieces through pinned host
 * memory. Pointers to another place than `where` says are not recognised. Reduce-scatter over nccl: sums, and
 * maxima and minima of integers, else GRADCOMP_ERR_UNSUPPORTED. The first such call on a group also finds out
 * whether all ranks can: if not, all fail with the reason of one of them, and the job goes on. A stream that is
 * being captured into a graph is refused.
 * Errors: as of gradcomp_allreduce(). UNSUPPORTED also where a rank cannot use the device or the collective there.
 * IO: the device has failed. */
GRADCOMP_EXPORT gradcomp_status gradcomp_allreduce_on(gradcomp_group *group, const gradcomp_memory_options *where,
                                                      void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                                      gradcomp_error *err);

/* Does gradcomp_allgather() with memory that `where` tells of. Errors: as of gradcomp_allreduce_on(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_allgather_on(gradcomp_group *group, const gradcomp_memory_options *where,
                                                      const void *in, void *out, const uint64_t *counts,
                                                      gradcomp_dtype dtype, gradcomp_error *err);

/* Does gradcomp_reduce_scatter() with memory that `where` tells of. Errors: as of gradcomp_allreduce_on(). */
GRADCOMP_EXPORT gradcomp_status gradcomp_reduce_scatter_on(gradcomp_group *group, const gradcomp_memory_options *where,
                                                           void *in, void *out, const uint64_t *counts,
                                                           gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err);

/* Does gradcomp_broadcast() with memory that `where` tells of.
 * Errors: as of gradcomp_allreduce_on(); INVALID also for a root that is no rank. */
GRADCOMP_EXPORT gradcomp_status gradcomp_broadcast_on(gradcomp_group *group, const gradcomp_memory_options *where,
                                                      void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                                      gradcomp_error *err);

/* 3. For frameworks and programs that ask for more
 * Steps whose first layers go on early, streams, checkpoints for any number of ranks, and what a job knows of
 * itself. */

/* A key-value store that a framework already has (torchrun's, for one), as a
 * way for ranks to find each other. Values are bytes. */
typedef struct gradcomp_store {
	uint32_t struct_size;
	int32_t rank, nranks;
	uint32_t reserved0;
	void *ctx;
	/* Returns 0 or negative. */
	int (*set)(void *ctx, const char *key, const void *value, size_t bytes);
	/* Waits until `key` is set, at most timeout_ms, and copies at most `capacity`
	 * bytes. Returns the value's length, or negative. */
	long (*get)(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms);
} gradcomp_store;

/* The host of a rank; NULL when there is no such rank. Owned by the job. Errors: NULL: there is no such rank. */
GRADCOMP_EXPORT const char *gradcomp_job_host(const gradcomp_job *job, int rank);

/* The effective value of a setting, for instance "gradcomp.compressor"; NULL
 * when there is no such setting. Owned by the job.
 * Errors: NULL: there is no such setting. */
GRADCOMP_EXPORT const char *gradcomp_job_setting(const gradcomp_job *job, const char *name);

/* GRADCOMP_OK, or the failure that the job has had, with the text that every later call ends with.
 * Never sleeps, from any thread: for a program whose own communication (Gloo, NCCL, MPI) fails and does not say which
 * rank is gone. That may be milliseconds before this job has heard of it.
 * Errors: the failure that the job has had. */
GRADCOMP_EXPORT gradcomp_status gradcomp_job_check(const gradcomp_job *job, gradcomp_error *err);

/* Returns when this tensor of the step in flight is done, which may be before the others
 * are: for programs whose next forward pass begins with the first layers. Fails like wait;
 * GRADCOMP_ERR_STATE when the tensor was not given in a step that has begun.
 * Errors: INVALID: no such tensor. STATE: it was not given in a step that has begun. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_wait_for(gradcomp_reducer *reducer, uint32_t index,
                                                          gradcomp_error *err);

/* Makes all that is put on `queue`, a stream, from now on come after the tensor's average, when the tensor is done.
 * Does not wait. Any thread, also in done(). Of gradients in host memory it does nothing.
 * Errors: INVALID: no such tensor. IO: the device has failed. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_follow(gradcomp_reducer *reducer, uint32_t index, void *queue,
                                                        gradcomp_error *err);

/* Saves one state for any number of ranks, the same bytes on all of them. With e_w the error memory of rank w of P
 * and m_w what a collective holds back there, each number of it is
 *
 *     (sum_w (e_w + m_w)) / P
 *
 * what the average over ranks is still owed; likewise the mean of each of the compressor's
 * arrays, and what the compressor keeps of its own, which is equal on all ranks. Whoever loads
 * it owes the same on average, on Q ranks as on P (doc/user/checkpoints.md); it does not continue to
 * the bit. Collective, between steps. With buf NULL only *bytes is set, and nothing is sent.
 * With a delay: after gradcomp_reducer_drain(), else GRADCOMP_ERR_STATE. GRADCOMP_ERR_MISMATCH when
 * ranks are at different steps, or the compressor's own state differs between them.
 * Errors: STATE: within a step, or a delay has not been drained. MISMATCH: ranks are at different steps, or the
 * compressor's own state differs. INVALID: capacity is less than *bytes. Else a failure. */
GRADCOMP_EXPORT gradcomp_status gradcomp_reducer_save_shared(gradcomp_reducer *reducer, void *buf, uint64_t capacity,
                                                             uint64_t *bytes, gradcomp_error *err);

struct gradcomp_links;
/* Opens links on a channel of their own between the ranks of a group, as a collective plugin gets them
 * (collective.h), for a program that runs a plugin or a protocol of its own. Local, but all ranks of the group open
 * and create what works on it in the same order. To be closed before the group is freed.
 * Errors: the failure that the job has had. */
GRADCOMP_EXPORT gradcomp_status gradcomp_links_open(gradcomp_group *group, const struct gradcomp_links **out,
                                                    gradcomp_error *err);

/* NULL links are fine. Errors: none. */
GRADCOMP_EXPORT void gradcomp_links_close(gradcomp_group *group, const struct gradcomp_links *links);

/* 4. What is installed and configured
 * For tools; none of these needs a job. */

typedef enum gradcomp_plugin_kind { GRADCOMP_KIND_COMPRESSOR = 0, GRADCOMP_KIND_COLLECTIVE = 1 } gradcomp_plugin_kind;

/* Calls `each` for every plugin of a kind on the plugin path, by name. One that
 * cannot be used is passed with info NULL and the reason. Stops when `each`
 * returns non-zero, and returns that. A negative status when the configuration
 * is unusable, so `each` had better return positive numbers.
 * Errors: a negative status: the configuration is unusable. */
GRADCOMP_EXPORT int gradcomp_plugin_each(gradcomp_plugin_kind kind,
                                         int (*each)(void *ctx, const char *name, const char *path,
                                                     const gradcomp_plugin_info *info, const char *reason),
                                         void *ctx, gradcomp_error *err);

/* Returns the name "auto" that stands where a compressor's SPEC does, and its parameters; not a plugin. Never NULL,
 * never freed.
 * Errors: none. */
GRADCOMP_EXPORT const gradcomp_plugin_info *gradcomp_auto_info(void);

/* Writes one row of a parameter table as text, "rank=INT (1..64, default 4)", cut to `capacity` bytes with its
 * final 0.
 * Errors: none. */
GRADCOMP_EXPORT void gradcomp_param_text(const gradcomp_param *row, char *out, size_t capacity);

/* Checks a compressor SPEC, a collective SPEC and the pair, without a job. NULL
 * stands for what the configuration says. The error text lists what is
 * possible.
 * Errors: INVALID: a SPEC or the configuration is wrong. NOTFOUND: no such plugin, or parameter. INSECURE, ABI: the
 * plugin cannot be used. UNSUPPORTED: the two do not go together. */
GRADCOMP_EXPORT gradcomp_status gradcomp_spec_check(const char *compressor, const char *collective,
                                                    gradcomp_error *err);

/* Checks the SPEC of a schedule, NULL for the configured one, without a job: its form, and of
 * plan:file=FILE that there is a plan in the file. Whether the plan is of a model, compressor
 * and collective shows when a reducer is made of them. GRADCOMP_ERR_INVALID for a SPEC or a
 * file that is wrong, _NOTFOUND or _IO for one that is not there or cannot be read.
 * Errors: INVALID: a SPEC or a file that is wrong. NOTFOUND, IO: a file that is not there or cannot be read. */
GRADCOMP_EXPORT gradcomp_status gradcomp_schedule_check(const char *schedule, gradcomp_error *err);

/* Calls `each` for every setting with its effective value and where it came
 * from ("default", "/etc/gradcomp/gradcomp.conf:12", "environment GRADCOMP",
 * "option --gradcomp"). Fails when the configuration is unusable.
 * Errors: those of the configuration: INVALID, NOTFOUND, INSECURE, IO. */
GRADCOMP_EXPORT gradcomp_status gradcomp_setting_each(void (*each)(void *ctx, const char *name, const char *value,
                                                                   const char *origin, const char *help),
                                                      void *ctx, gradcomp_error *err);

/* 5. Experimental
 * What may change from one release to the next: to go on without lost ranks, averages that are applied late, and
 * work that all ranks would do alike. So are coders, in coder.h. */

/* Tells who goes on after ranks were lost. The arrays are the job's, until the next shrink. */
typedef struct gradcomp_survivors {
	uint32_t struct_size; /* set by the caller */
	uint32_t epoch;       /* 0 in the job that began; more with every agreement */
	int32_t rank, nranks; /* this job's from now on */
	int32_t old_rank, old_nranks;
	const int32_t *ranks; /* ranks[r], r < nranks: what rank r was before this call */
	const int32_t *lost;  /* ranks before this call that are lost, old_nranks - nranks of them */
	/* 1: the call that failed here with GRADCOMP_ERR_PEER_LOST is done on all ranks, and what it gives is in
	 * place: averages, a buffer, a saved or loaded state. 0: it is void on all, and its buffers hold nothing of
	 * use: call it again. */
	int32_t step_done;
	uint32_t reserved0;
	/* The gradcomp_reducer or gradcomp_dataset that the call that failed was to make, if that is done; else
	 * NULL. */
	void *made;
} gradcomp_survivors;

/* Lets the ranks that live go on after GRADCOMP_ERR_PEER_LOST; each of them calls it. They agree on who is left,
 * are numbered anew in the order they had, and the world, the job's reducers and its datasets work among them from
 * then on. A reducer's error memory is as it was before the failed step or load when that is void, else as after
 * it; what lost ranks owed is lost. So that all agree, each collective call on the world, its reducers and datasets
 * ends with a barrier in such a job: a call that has returned GRADCOMP_OK on one of those left is done (step_done),
 * also where it has failed, and any other is void. A rank may fail one call later than another: each does what it
 * is told about its own. What is freed for this call (other groups, links, coders, gradcomp_parallel) all make
 * anew, also where making it has failed. Calls on other groups, on links and gradcomp_coder_..._start() do not
 * count: what has been done of those since the last call that counts is done again. The compressor's own state is
 * that of the new rank 0. A rank that is lost meanwhile is left out too. Other groups, links, coders and the like
 * must have been freed. On other threads gradcomp_dataset_get() and _next() go on; calls of a reducer,
 * gradcomp_dataset_begin() and _resume() that are under way end first, and are GRADCOMP_ERR_STATE while this one is
 * at work, as is a second shrink; no other call may be under way on the job. Not in done(), whose end it waits for.
 * Returns when all that are left have called it, or gradcomp_job_free(): a rank that leaves says how far it has
 * come, and those that have more to do go on without it. Hosts' names (gradcomp_job_host) are new.
 *
 * Errors: STATE, and nothing is done: nothing has failed, gradcomp.on_failure is not shrink, something is not
 * freed, or this process was forked off a rank. Otherwise the job cannot be used again: PEER when this
 * rank is with the smaller part of the ranks of the last epoch (of two halves, the one without the lowest rank),
 * fewer than gradcomp.min_ranks are left, or the others have given this rank up; TIMEOUT when a rank
 * lives and does not call it within transport.wait_timeout. A reducer that another rank has freed is
 * GRADCOMP_ERR_STATE from then on, and is to be freed. `survivors` may be NULL. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_job_shrink(gradcomp_job *job,
                                                                          gradcomp_survivors *survivors,
                                                                          gradcomp_error *err);

/* Drains a reducer with a delay of D steps. There a tensor is done at once, and its memory then holds, with g the
 * rank's own gradient,
 *
 *     g(t) + mean over ranks of g(t-D) - g(t-D)            (without the last two while t < D)
 *
 * so that an SGD step with it is the local step and the correction of step t-D.
 * wait() returns when the average of step t-D has come. drain() waits for the steps in
 * flight and adds what they still owe, sum over them of mean - own, to corrections[i]
 * (numel elements of the declared type each; the caller's, in the order of declaration):
 * a last w -= rate * correction makes the weights of all ranks equal but for rounding.
 * With weights (NULL: none) the caller has that done here: weights[i] -= rate *
 * corrections[i], then their mean over ranks, so that they are equal to the bit.
 * Collective.
 * Errors: STATE: within a step. INVALID: corrections or one of a
 * tensor's pointers is NULL, a rate that is not finite. PEER: another rank of a
 * delayed reducer cannot. MISMATCH: weights or rates that differ between
 * ranks. Nothing has changed then. Else a failure.
 * Afterwards nothing is in flight. With delay 0 it does nothing to corrections.
 * With GRADCOMP_CUDA corrections and weights are in that device's memory, and the call is as if it
 * were put on options.queue: it comes after what is there, and what is put there later after it. The
 * mean of weights goes through host memory, and the call waits for it. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_reducer_drain(gradcomp_reducer *reducer,
                                                                             void *const *corrections,
                                                                             void *const *weights, double rate,
                                                                             gradcomp_error *err);

/* Policies: what of a program's own collectives is compressed, and how. For libraries under a framework
 * (torch.distributed, MPI), which see calls and not models. A policy is a text,
 *
 *     POLICY:    ENTRY, or several separated by '+'; the first that is for a call decides
 *     ENTRY:     SELECTOR/SPEC or SELECTOR/SPEC@COLLECTIVE
 *     SELECTOR:  words separated by '.', each at most once:
 *                  dp tp pp ep                           roles of groups; `any`: all groups, those without a role too
 *                  @NAME                                 in place of roles: the group of that name
 *                  all_reduce all_gather reduce_scatter  operations
 *                  f32 f16 bf16                          types of numbers
 *                  64K                                   least bytes of a call: a size as in settings, first digit first
 *
 * as in dp.all_reduce/powersgd:rank=4+dp.all_gather.reduce_scatter/block:bits=8+tp.1M/block:bits=8. Blanks around
 * entries, selectors and SPECs are left out; there are none within. What a selector does not say: role dp; all
 * operations that the SPEC can do; all three types; 64K. What no entry is for goes as it is, and so does what is for
 * one whose SPEC is none. A SPEC alone is the policy dp/SPEC. all_gather and reduce_scatter take compressors that a
 * coder takes (coder.h); all_reduce takes every one but auto. */
typedef struct gradcomp_policy gradcomp_policy;

typedef enum gradcomp_role {
	GRADCOMP_ROLE_NONE = 0, /* nobody knows what the group is for */
	GRADCOMP_ROLE_DP = 1,   /* data parallel: replicas, and shards of them */
	GRADCOMP_ROLE_TP = 2,   /* tensor parallel */
	GRADCOMP_ROLE_PP = 3,   /* stages of a pipeline */
	GRADCOMP_ROLE_EP = 4    /* experts */
} gradcomp_role;

typedef enum gradcomp_policy_operation {
	GRADCOMP_POLICY_ALL_REDUCE = 0,
	GRADCOMP_POLICY_ALL_GATHER = 1,
	GRADCOMP_POLICY_REDUCE_SCATTER = 2
} gradcomp_policy_operation;

/* Describes a call that a program makes. */
typedef struct gradcomp_policy_call {
	uint32_t struct_size; /* set by the caller */
	uint32_t operation;   /* gradcomp_policy_operation */
	uint32_t dtype;       /* gradcomp_dtype; of another than F32, F16 and BF16 nothing is compressed */
	uint32_t role;        /* gradcomp_role */
	const char *name;     /* the group's, for @NAME; NULL: it has none */
	uint64_t bytes;       /* of the whole: what is reduced, all blocks of a gather's output or a scatter's input */
} gradcomp_policy_call;

/* Describes an entry; its texts are owned by the policy. */
typedef struct gradcomp_policy_entry {
	uint32_t struct_size;   /* set by the caller */
	uint32_t number;        /* of the entry, from 0 */
	const char *selector;   /* as written: "dp.all_gather" */
	const char *spec;       /* "block:bits=8" */
	const char *collective; /* NULL: none is named */
	uint32_t roles;         /* 1 << gradcomp_role for each; 0: the group is named */
	uint32_t operations;    /* 1 << gradcomp_policy_operation for each that is named and its SPEC can do */
	const char *name;       /* of the group; NULL where it goes by roles */
} gradcomp_policy_entry;

/* Reads a policy, or NULL for the setting gradcomp.compressor, and checks its SPECs against the plugins. Local, needs
 * no job. *out is freed by gradcomp_policy_free(); ranks are to have the same text (gradcomp_policy_text()).
 * Errors: INVALID: the text; it says where, what was found and what would be right: a word that is none, one twice, an
 * integer type, an entry that another hides. UNSUPPORTED: the SPEC cannot do an operation that the entry names. Else
 * as of gradcomp_spec_check() and gradcomp_coder_check(). */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_policy_create(const char *text, gradcomp_policy **out,
                                                                             gradcomp_error *err);

/* NULL is fine. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL void gradcomp_policy_free(gradcomp_policy *policy);

/* Returns 1 when the text is a policy and no SPEC: it has a '/' before any ':'. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL int gradcomp_policy_is(const char *text);

/* Returns the policy in one form, whatever blanks were in it; equal for policies that are written alike. Owned by the
 * policy. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL const char *gradcomp_policy_text(const gradcomp_policy *policy);

/* Returns how many entries there are. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL uint32_t gradcomp_policy_entries(const gradcomp_policy *policy);

/* Fills *entry, whose struct_size is set, with entry `number`. Errors: INVALID: there is none of that number. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_policy_get(const gradcomp_policy *policy,
                                                                          uint32_t number, gradcomp_policy_entry *entry,
                                                                          gradcomp_error *err);

/* Returns the number of the entry by which a call is compressed; -1: it goes as it is. Takes no lock and no memory; any
 * thread, also several at a time.
 * Errors: -1: an argument is wrong. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL int gradcomp_policy_match(const gradcomp_policy *policy,
                                                                const gradcomp_policy_call *call);

/* Returns the role that a group's name tells of: "dp_shard", "mesh_tp", "data_parallel", "pipeline"; ROLE_NONE where it
 * tells of none or of several. A group that tells of none (NULL for one without a name) and has all `nranks` = `world`
 * ranks of the job is data parallel.
 * Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_role gradcomp_policy_role(const char *name, int nranks, int world);

/* Parallel tensor operator (PTO; Shi et al., HiPC 2020): what follows a reduction (norms,
 * an optimizer's update) is the same work on all ranks; here each does a share of it and
 * they gather the rest, where that is faster. */
typedef struct gradcomp_parallel gradcomp_parallel;

/* Prepares n pieces of work; piece i makes bytes[i] bytes. Collective; the same everywhere, else
 * GRADCOMP_ERR_MISMATCH; _RANGE for more bytes than memory can have. Needs the group for as long as it lives. *out
 * is freed by gradcomp_parallel_free().
 * Errors: MISMATCH: ranks differ in the pieces. RANGE: more bytes than memory can have. Else a failure. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_parallel_create(gradcomp_group *group,
                                                                               const uint64_t *bytes, uint32_t n,
                                                                               gradcomp_parallel **out,
                                                                               gradcomp_error *err);

/* Does the same with pieces in memory that `where` tells of; NULL: host memory. With GRADCOMP_CUDA out[i] are
 * there, and work(ctx, i) puts the piece's work on the stream where->queue. Calls that are timed wait for the
 * device, and so do those that share; what is put on the stream after a call comes after the pieces. Pieces travel
 * as by gradcomp_allgather_on().
 * Errors: as of gradcomp_parallel_create(). UNSUPPORTED: a rank cannot use the device. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_parallel_create_on(gradcomp_group *group,
                                                                                  const gradcomp_memory_options *where,
                                                                                  const uint64_t *bytes, uint32_t n,
                                                                                  gradcomp_parallel **out,
                                                                                  gradcomp_error *err);

/* work(ctx, i) does piece i, into out[i]. What it changes and a later call reads must be in
 * out[i] too (an optimizer's state), since another rank may do the piece next time.
 * Collective, blocking, on the calling thread. Returns with out[0..n-1] complete on every
 * rank, the same bits as the rank that did the piece has. The first calls are timed both
 * ways; from then on, on all ranks alike, pieces are shared if t_work - t_share > t_gather,
 * else every rank does all of them; looked at again every 100 calls. t_share is the longest
 * of the runs of neighbours that the pieces are cut into: t_work / P where they can be cut
 * evenly. Memory that stays: as much as the pieces make. GRADCOMP_ERR_INVALID when out[i] of
 * a piece that makes something is NULL; where others would wait for the piece the job ends
 * with that. Otherwise fails like an exchange.
 * Errors: INVALID: out[i] of a piece that makes something is NULL. Else a failure. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL gradcomp_status gradcomp_parallel_apply(gradcomp_parallel *p, void *const *out,
                                                                              void (*work)(void *ctx, uint32_t piece),
                                                                              void *ctx, gradcomp_error *err);

/* Returns what was decided and why, in a line for people. Owned by p, valid until the next call. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL const char *gradcomp_parallel_reason(const gradcomp_parallel *p);

/* Local. NULL is fine. Errors: none. */
GRADCOMP_EXPORT GRADCOMP_EXPERIMENTAL void gradcomp_parallel_free(gradcomp_parallel *p);

#ifdef __cplusplus
}
#endif
#endif
