/* gradcomp/collective.h: the interface of a collective plugin.
 *
 * A collective moves payloads between the ranks of a group. It is a shared
 * object NAME.so with one exported constant:
 *
 *     GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = { ... };
 *
 * Its primitives are straight blocking code over links: ordered, reliable byte
 * channels to the peers of the group. A primitive that is missing (NULL) is one
 * the plugin does not serve; the host refuses a compressor that would need it
 * before the job starts.
 *
 * Thread rule. An instance belongs to one channel of one group; the host runs
 * one function of it at a time, on a thread that may sleep. All ranks of the
 * group call the same functions in the same order with matching arguments.
 * Nothing but the wait functions of the links blocks. A primitive may allocate; what a call needs
 * every time is better kept from one call to the next.
 *
 * Agreement. Every primitive that leaves a result on all ranks leaves the same
 * bits on all ranks, and the same from run to run; a plugin that chooses its way by
 * what it measures says so and has a parameter that fixes the choice.
 */
#ifndef GRADCOMP_COLLECTIVE_H
#define GRADCOMP_COLLECTIVE_H

#include "gradcomp/abi.h"
#include "gradcomp/compressor.h"
#include "gradcomp/operators.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A transfer in flight. The caller owns it, keeps it in place until it has been
 * waited for, and looks at nothing inside. Needs no initialisation. */
typedef struct gradcomp_request {
	uint64_t opaque[24];
} gradcomp_request;

/* The links of one channel of a group. Transfers between two ranks match in
 * the order they were posted, and must have equal lengths on both sides: a
 * difference fails with GRADCOMP_ERR_MISMATCH on the receiver. A rank is no peer of itself:
 * GRADCOMP_ERR_INVALID. Posting never
 * blocks and moves what it can; progress of all posted transfers is made inside
 * wait. A posted buffer is the link's until its request has been waited for.
 * After a failure every further call on the links fails with the same error:
 * requests need not be waited for any more, their buffers are free. */
typedef struct gradcomp_links {
	uint32_t struct_size;
	int32_t rank, nranks;
	int32_t nnodes;
	const int32_t *node; /* node[r]: 0..nnodes-1, numbered by first appearance */
	void *ctx;

	gradcomp_status (*send)(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
	                        gradcomp_error *err);
	gradcomp_status (*recv)(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
	                        gradcomp_error *err);
	/* Returns when the transfer is complete. Waiting again is fine. */
	gradcomp_status (*wait)(void *ctx, gradcomp_request *req, gradcomp_error *err);
	/* *done = 1 when complete: as good as waited for. Makes progress, never sleeps. */
	gradcomp_status (*test)(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err);

	/* The piece size at which a pipeline over these links runs best, in bytes. */
	size_t chunk;
	/* Posts a receive that reduces what comes: acc = acc OP incoming. NULL where the link cannot do better than
	 * a receive and an operation (never required). */
	gradcomp_status (*recv_reduce)(void *ctx, int peer, void *acc, size_t count, gradcomp_dtype dtype,
	                               gradcomp_op op, gradcomp_request *req, gradcomp_error *err);
	/* GRADCOMP_OK, or the failure of the job, even if no link has reported it yet: for
	 * collectives that wait for something else than links. Never sleeps. */
	gradcomp_status (*failure)(void *ctx, gradcomp_error *err);
	/* Sends the same bytes to n different peers, like one send to each, whose requests are reqs[0..n-1]. Links
	 * that share memory keep one copy for all of them, a part at a time: so a peer may get its bytes only when
	 * the others have posted their receives. NULL: not to be had. */
	gradcomp_status (*multicast)(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
	                             gradcomp_request *reqs, gradcomp_error *err);
} gradcomp_links;

/* Nobody keeps what the code loses, and it is not right on average. So partial sums are better not coded: a collective
 * has every number of the sum added up in one place, as floats, where it can. */
#define GRADCOMP_CODEC_LOSES (1u << 0)

/* The code a CODED exchange runs under; a view of the compressor's functions. */
typedef struct gradcomp_codec {
	uint32_t struct_size;
	uint32_t flags; /* GRADCOMP_CODEC_* */
	void *ctx;
	uint64_t (*bound)(void *ctx, uint64_t n);
	gradcomp_status (*code)(void *ctx, const float *in, uint64_t n, uint64_t counter, void *out, uint64_t *bytes,
	                        gradcomp_error *err);
	gradcomp_status (*decode)(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
	                          gradcomp_error *err);
	gradcomp_status (*decode_add)(void *ctx, const void *in, uint64_t bytes, float *out, uint64_t n,
	                              gradcomp_error *err);
	/* code_layout() of the compressor; NULL: it has none. */
	void (*layout)(void *ctx, uint64_t n, gradcomp_code_layout *out);
} gradcomp_codec;

/* How two MERGED payloads become one; calls the compressor's merge(). */
typedef struct gradcomp_merger {
	uint32_t struct_size;
	uint32_t reserved0;
	void *ctx;
	gradcomp_status (*merge)(void *ctx, const gradcomp_payload *a, const gradcomp_payload *b, gradcomp_payload *out,
	                         gradcomp_error *err);
} gradcomp_merger;

/* A CODED sum by a collective with an error memory of its own, server_error: what is lost
 * where the complete sum is coded waits there for the next step, instead of going
 * into the error memory of the rank that coded it. With m that memory before, m'
 * after, in units of the sum:
 * sum_w (u_w + m_w) = buf / scale + sum_w (residual_w + m'_w). Without such a
 * memory it is as coded_allreduce. */
typedef struct gradcomp_exchange {
	uint32_t struct_size;
	uint32_t reserved0;
	float *buf; /* count floats; the result in place */
	uint64_t count;
	double scale;
	const gradcomp_codec *codec;
	uint64_t counter;    /* the first number of its runs, as for coded_allreduce */
	float *residual;     /* likewise; may be NULL */
	float *server_error; /* server_error() asked for so many floats; zero at first. NULL: none is kept */
} gradcomp_exchange;

/* Two levels: ranks of a node sum among themselves, and the compressor works on
 * the part of a bucket that this rank then holds the node's sum of, between it and
 * the ranks of other nodes that hold the same part. */
typedef struct gradcomp_shard {
	uint32_t struct_size;
	int32_t rank, nranks; /* among the holders of the part; rank -1: this rank holds nothing */
	uint32_t reserved0;
	uint64_t begin, numel; /* elements of the bucket */
} gradcomp_shard;

/* Counts what a call takes on its critical path, a level at a time: [0] inside a node, [1] between nodes. Filled by
 * predict(). */
typedef struct gradcomp_call_load {
	uint32_t struct_size; /* set by the host */
	uint32_t reserved0;
	double messages[2];
	/* Bytes that follow one another: through a rank ([0]), or through the interface of the busiest node, one
	 * way ([1]). */
	double bytes[2];
	double reduced; /* bytes that a rank adds up */
	double coded;   /* CODED_*: floats that a rank codes or decodes, one after another */
	double sent;    /* bytes that a rank sends, the mean over ranks */
	double left;    /* bytes that leave a node, the mean over nodes */
	/* CODED_*, EXCHANGE: how much of `bytes` and of `sent` goes as the floats are, uncoded. */
	double uncoded[2], uncoded_sent;
	double reserved[1];
} gradcomp_call_load;

/* Primitives, as bits of what a plugin serves. */
#define GRADCOMP_CAN_ALLREDUCE (1u << 0)
#define GRADCOMP_CAN_REDUCE_SCATTER (1u << 1)
#define GRADCOMP_CAN_ALLGATHER (1u << 2)
#define GRADCOMP_CAN_ALLTOALL (1u << 3)
#define GRADCOMP_CAN_BROADCAST (1u << 4)
#define GRADCOMP_CAN_BARRIER (1u << 5)
#define GRADCOMP_CAN_MERGE (1u << 6)
#define GRADCOMP_CAN_CODED_ALLREDUCE (1u << 7)
#define GRADCOMP_CAN_CODED_ALLGATHER (1u << 8)
#define GRADCOMP_CAN_EXCHANGE (1u << 9)
#define GRADCOMP_CAN_SHARD (1u << 10)
#define GRADCOMP_CAN_CODED_REDUCE_SCATTER (1u << 11)
/* Coded sums under GRADCOMP_CODEC_LOSES go another way than others, and predict() tells what they cost when this is set
 * beside their primitive. It has no function. */
#define GRADCOMP_CAN_OWNED_SUMS (1u << 12)

/* Returns the primitives that payloads of a pattern travel by. */
static inline uint32_t gradcomp_pattern_needs(gradcomp_pattern pattern)
{
	switch (pattern) {
	case GRADCOMP_SUMMED:
		return GRADCOMP_CAN_ALLREDUCE;
	case GRADCOMP_GATHERED:
		return GRADCOMP_CAN_ALLGATHER;
	case GRADCOMP_MERGED:
		return GRADCOMP_CAN_MERGE;
	case GRADCOMP_CODED: /* it is asked without a code if there is a NaN */
		return GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_ALLREDUCE;
	}
	return ~0u;
}

/* Returns 1 when payloads of all these patterns travel. Coded sums go by an exchange too. */
static inline int gradcomp_carries(uint32_t serves, uint32_t patterns)
{
	uint32_t has = (serves & GRADCOMP_CAN_EXCHANGE) ? serves | GRADCOMP_CAN_CODED_ALLREDUCE : serves;
	for (int p = GRADCOMP_SUMMED; p <= GRADCOMP_CODED; p++)
		if (patterns & GRADCOMP_PATTERN_BIT(p) && gradcomp_pattern_needs((gradcomp_pattern)p) & ~has)
			return 0;
	return 1;
}

/* Returns what a compressor may plan over a collective, 0 when the two do not go together: its `patterns`; its
 * `instead` where those are not carried, or where sums of codes are what the collective is for (it serves an
 * exchange). */
static inline uint32_t gradcomp_compatible_patterns(const struct gradcomp_compressor_v1 *c, uint32_t serves)
{
	int instead = c->instead && gradcomp_carries(serves, c->instead);
	if (instead && c->instead & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED) && serves & GRADCOMP_CAN_EXCHANGE)
		return c->instead;
	return gradcomp_carries(serves, c->patterns) ? c->patterns : instead ? c->instead : 0;
}

/* With GRADCOMP_TRAIT_CUDA: where unusable() gives a reason instances serve host buffers all the same, and the
 * host goes on with those, warns and says the reason. */
#define GRADCOMP_TRAIT_ELSE_HOST (1u << 9)
/* With enqueue(): set_queue() may take turns between two queues. What an instance communicates is done in the order of
 * its calls, on whichever queue. What it computes on one queue need not wait for the other, so memory that it works in
 * is one queue's alone. */
#define GRADCOMP_TRAIT_TWO_QUEUES (1u << 10)
/* The reductions also take I8 and I16, PRODUCT, BAND and BXOR, as reduce() of the host's operators does. Without it the
 * host reduces by itself where those are asked for. */
#define GRADCOMP_TRAIT_ALL_TYPES (1u << 11)

struct gradcomp_collective_v1 {
	gradcomp_plugin_info info;
	uint32_t serves; /* GRADCOMP_CAN_*; a set bit has its function */
	/* GRADCOMP_TRAIT_CUDA: takes device buffers; GRADCOMP_TRAIT_ELSE_HOST, _TWO_QUEUES, _ALL_TYPES */
	uint32_t traits;

	/* Optional, as in gradcomp_compressor_v1. */
	gradcomp_status (*check)(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err);
	/* May allocate. `host` and `links` outlive the instance. */
	gradcomp_status (*create)(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
	                          void **instance, gradcomp_error *err);
	void (*destroy)(void *instance);

	/* buf (count elements of dtype, on every rank) = OP over ranks; for SUM of a
	 * floating type every element is then multiplied by `scale` (1.0: left as it
	 * is) exactly once. In place. */
	gradcomp_status (*allreduce)(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
	                             double scale, gradcomp_error *err);
	/* buf holds nranks blocks, block r of counts[r] elements; on return this
	 * rank's own block is reduced and scaled, the rest of buf is undefined. */
	gradcomp_status (*reduce_scatter)(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
	                                  gradcomp_op op, double scale, gradcomp_error *err);
	/* buf holds nranks blocks one after another, block r of bytes[r]; on entry
	 * this rank's own is in place, on return all are. */
	gradcomp_status (*allgather)(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
	/* Block r of `in` (in_bytes[r]) goes to rank r; block r of `out`
	 * (out_bytes[r]) comes from rank r. */
	gradcomp_status (*alltoall)(void *instance, const void *in, const uint64_t *in_bytes, void *out,
	                            const uint64_t *out_bytes, gradcomp_error *err);
	gradcomp_status (*broadcast)(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
	/* No rank leaves before every rank has entered. */
	gradcomp_status (*barrier)(void *instance, gradcomp_error *err);

	/* Merges all payloads into one, which every rank then has in *inout; `bound` is the capacity of inout and
	 * of every intermediate payload. */
	gradcomp_status (*merge)(void *instance, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
	                         gradcomp_error *err);
	/* Do what allreduce (SUM) and allgather do on floats, coded on the way. residual (count floats, or
	 * counts[rank]; may be NULL) receives what this rank's own coding lost, in units of the sum:
	 * sum_w u_w = buf / scale + sum_w residual_w. Runs are numbered from `counter` on, fewer than 2^24 of them. */
	gradcomp_status (*coded_allreduce)(void *instance, float *buf, uint64_t count, double scale,
	                                   const gradcomp_codec *codec, uint64_t counter, float *residual,
	                                   gradcomp_error *err);
	gradcomp_status (*coded_allgather)(void *instance, float *buf, const uint64_t *counts,
	                                   const gradcomp_codec *codec, uint64_t counter, float *residual,
	                                   gradcomp_error *err);

	/* Used in place of coded_allreduce where it is served. server_error: floats of memory
	 * for a bucket of `count`; the host keeps, saves and loads them for a compressor
	 * with GRADCOMP_TRAIT_ERROR_FEEDBACK. */
	gradcomp_status (*exchange)(void *instance, const gradcomp_exchange *x, gradcomp_error *err);
	uint64_t (*server_error)(void *instance, uint64_t count);

	/* Device primitives take the caller's stream; set before a call when traits
	 * has CUDA, ignored otherwise. */
	gradcomp_status (*set_queue)(void *instance, void *queue, gradcomp_error *err);

	/* Optional, for planners. Tells how many bytes this rank sends for an all-reduce of `bytes`, and how many
	 * messages are on its critical path. */
	void (*cost)(void *instance, uint64_t bytes, double *sent, double *messages);

	/* GRADCOMP_CAN_SHARD: all five. A function of the group and `numel` alone. */
	gradcomp_status (*shard)(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err);
	/* buf: numel floats. On return this rank's shard is the sum over its node times
	 * `scale`, the rest of buf is undefined. */
	gradcomp_status (*local_reduce_scatter)(void *instance, float *buf, uint64_t numel, double scale,
	                                        gradcomp_error *err);
	/* Do what allreduce and allgather do, among the holders of this rank's shard; called on those alone that
	 * hold one. */
	gradcomp_status (*shard_allreduce)(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype,
	                                   gradcomp_op op, double scale, gradcomp_error *err);
	gradcomp_status (*shard_allgather)(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
	/* Every rank's shard is in place in buf; on return all of buf is. */
	gradcomp_status (*local_allgather)(void *instance, float *buf, uint64_t numel, gradcomp_error *err);

	/* Does what reduce_scatter (SUM) does on floats, coded on the way: on return this rank's own block is the
	 * scaled sum, uncoded. residual as in coded_allreduce, of all of buf: in every block,
	 * sum_w u_w = (its owner's buf) / scale + sum_w residual_w. */
	gradcomp_status (*coded_reduce_scatter)(void *instance, float *buf, const uint64_t *counts, double scale,
	                                        const gradcomp_codec *codec, uint64_t counter, float *residual,
	                                        gradcomp_error *err);

	/* Optional, for planners. Predicts what one call of `primitive` (a single GRADCOMP_CAN_*) costs in a group
	 * of nranks ranks on nnodes nodes, as evenly as they go. `bytes`: ALLREDUCE and REDUCE_SCATTER: of the
	 * whole buffer; ALLGATHER, BROADCAST: of one rank's block; ALLTOALL: from one rank to another; MERGE: of
	 * one payload; CODED_*, EXCHANGE: of the floats, of one rank's block for a gather, as if a code were as
	 * long as they are. SHARD: the two levels of a bucket of so many bytes, without what goes among the
	 * holders. A function of its arguments alone; needs no instance; any thread, several at a time. UNSUPPORTED
	 * for a primitive it does not serve. */
	gradcomp_status (*predict)(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
	                           uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err);

	/* Optional, with GRADCOMP_CAN_EXCHANGE. Says which numbers of a bucket of `count` that memory belongs to:
	 * server_error[i] belongs to number server_error_begin(count) + i, in units of the sum. Without it the
	 * buckets of a reducer with such a memory are never moved. */
	uint64_t (*server_error_begin)(void *instance, uint64_t count);

	/* Optional, both or none, with GRADCOMP_TRAIT_CUDA. enqueue(1): from now on calls on device
	 * memory return when their work is on the queue; buffers are the collective's until the
	 * queue has done it, and what fails afterwards is found by watch(). */
	gradcomp_status (*enqueue)(void *instance, int on, gradcomp_error *err);
	/* Looks after what is on the queue; the host calls it every few milliseconds while *busy.
	 * When that has failed, a rank has died or the job has failed: the reason, and nothing of
	 * the instance's is on the queue any more. *busy: there is work to come. Sleeps only to
	 * end what has failed. */
	gradcomp_status (*watch)(void *instance, int *busy, gradcomp_error *err);
	/* Optional. Why instances could not be used in this process, in a line, such as a library
	 * that it lacks; NULL: they can. Asked before one is made, where it is not the user who
	 * names the collective. Any thread; the text is the thread's until it asks again. */
	const char *(*unusable)(void);

	/* Optional, with GRADCOMP_CAN_SHARD, where a rank may hold several shards of a bucket. Gives the shard with
	 * this index as shard() gives the one with index 0; its rank is -1 where this rank holds no more. *holders
	 * is what shard_allreduce and shard_allgather then take for `instance`. How many a rank holds does not
	 * follow from numel, and all have `nranks` holders. A rank makes each call for its shards in the order of
	 * their indices. */
	gradcomp_status (*shard_at)(void *instance, uint32_t index, uint64_t numel, gradcomp_shard *out, void **holders,
	                            gradcomp_error *err);
};

/* The constant that NAME.so exports. In C++ a constant without this would be the file's own. */
extern GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1;

#ifdef __cplusplus
}
#endif
#endif
