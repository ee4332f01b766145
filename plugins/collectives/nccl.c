/* nccl: payloads in CUDA memory by NVIDIA's library, on the caller's stream. What is
 * in host memory (lengths, marks, plain collectives of a program) goes over the job's
 * links as `ring` (all-to-all: `direct`, merging: `tree`) carries it, so a job can name this collective for everything.
 *
 * Calls return when the stream has done the work, or, where the host asks for it, when it is
 * there; the host's thread then looks after it by watch(), see nccl/comm.c. */
#include "plugins/collectives/nccl/comm.h"

enum { PARAM_TIMEOUT };

static const gradcomp_param params[] = {
	[PARAM_TIMEOUT] = {.name = "timeout",
                           .type = GRADCOMP_PARAM_FLOAT,
                           .def = "1800",
                           .min = 0.1,
                           .max = 604800,
                           .help = "seconds a call may wait for other ranks"},
};

/* Buffers in host memory go by this. */
static const ring_options usual = {.small = 8192};

static void destroy(void *instance)
{
	nccl *n = instance;
	if (!n)
		return;
	nccl_close(n);
	ring_destroy(n->ring);
	direct_destroy(n->direct);
	tree_destroy(n->tree);
	n->host->release(n);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	nccl *n = host->alloc(sizeof *n);
	gradcomp_status st;
	if (!n)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "nccl: no memory");
	n->host = host;
	n->links = links;
	n->timeout = values[PARAM_TIMEOUT].f;
	st = ring_create(host, links, &usual, &n->ring, err);
	if (!st)
		st = direct_create(host, links, 0, &n->direct, err);
	if (!st)
		st = tree_create(host, links, 0, &n->tree, err);
	if (st)
		destroy(n);
	else
		*instance = n;
	return st;
}

static gradcomp_status set_queue(void *instance, void *queue, gradcomp_error *err)
{
	(void)err;
	nccl_take_queue(instance, queue);
	return GRADCOMP_OK;
}

static gradcomp_status enqueue(void *instance, int on, gradcomp_error *err)
{
	nccl *n = instance;
	(void)err;
	n->enqueues = on;
	return GRADCOMP_OK;
}

static gradcomp_status watch(void *instance, int *busy, gradcomp_error *err)
{
	return nccl_watch(instance, busy, err);
}

/* A call on device memory, or else the ring's. */
#define EITHER(n, buf, device, host) \
	do { \
		gradcomp_status st; \
		if (!nccl_on_device(buf)) \
			return host; \
		st = nccl_ready(n, err); \
		return st ? st : device; \
	} while (0)

static gradcomp_status allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_allreduce(n, buf, count, dtype, op, scale, err),
	       ring_allreduce(n->ring, buf, count, dtype, op, scale, err));
}

static gradcomp_status reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_reduce_scatter(n, buf, counts, dtype, op, scale, err),
	       ring_reduce_scatter(n->ring, buf, counts, dtype, op, scale, err));
}

static gradcomp_status allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_allgather(n, buf, bytes, err), ring_allgather(n->ring, buf, bytes, err));
}

static gradcomp_status alltoall(void *instance, const void *in, const uint64_t *in_bytes, void *out,
                                const uint64_t *out_bytes, gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, in, nccl_alltoall(n, in, in_bytes, out, out_bytes, err),
	       direct_alltoall(n->direct, in, in_bytes, out, out_bytes, err));
}

static gradcomp_status broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_broadcast(n, buf, bytes, root, err), ring_broadcast(n->ring, buf, bytes, root, err));
}

static gradcomp_status barrier(void *instance, gradcomp_error *err)
{
	nccl *n = instance;
	return n->failed.status ? n->host->fail(err, n->failed.status, "%s", n->failed.text)
	                        : ring_barrier(n->ring, err);
}

static gradcomp_status merge(void *instance, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                             gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, inout->data, nccl_merge(n, inout, bound, merger, err),
	       tree_merge(n->tree, inout, bound, merger, err));
}

static gradcomp_status coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_coded_allreduce(n, buf, count, scale, codec, counter, residual, err),
	       ring_coded_allreduce(n->ring, buf, count, scale, codec, counter, residual, err));
}

static gradcomp_status coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_coded_reduce_scatter(n, buf, counts, scale, codec, counter, residual, err),
	       ring_coded_reduce_scatter(n->ring, buf, counts, scale, codec, counter, residual, err));
}

static gradcomp_status coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                       uint64_t counter, float *residual, gradcomp_error *err)
{
	nccl *n = instance;
	EITHER(n, buf, nccl_coded_allgather(n, buf, counts, codec, counter, residual, err),
	       ring_coded_allgather(n->ring, buf, counts, codec, counter, residual, err));
}

static void cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const nccl *n = instance;
	ring_cost(n->ring, bytes, sent, messages);
}

/* Predicts the same as over the job's links; NCCL's own ways have as many bytes. */
static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	(void)values;
	if (primitive & GRADCOMP_CAN_EXCHANGE)
		return call_cost_refuse("nccl", primitive, err);
	if (primitive == GRADCOMP_CAN_MERGE)
		return tree_predict(nranks, nnodes, primitive, bytes, out, err);
	return primitive == GRADCOMP_CAN_ALLTOALL ? direct_predict(nranks, nnodes, primitive, bytes, out, err)
	                                          : ring_predict(&usual, nranks, nnodes, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "nccl",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary = "NVIDIA's NCCL for payloads in GPU memory; host memory as ring",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_ALLTOALL | GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_MERGE |
                  GRADCOMP_CAN_CODED_ALLREDUCE | GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER,
	.traits = GRADCOMP_TRAIT_CUDA | GRADCOMP_TRAIT_TWO_QUEUES,
	.create = create,
	.destroy = destroy,
	.set_queue = set_queue,
	.enqueue = enqueue,
	.watch = watch,
	.unusable = nccl_unusable,
	.allreduce = allreduce,
	.reduce_scatter = reduce_scatter,
	.allgather = allgather,
	.alltoall = alltoall,
	.broadcast = broadcast,
	.barrier = barrier,
	.merge = merge,
	.coded_allreduce = coded_allreduce,
	.coded_allgather = coded_allgather,
	.coded_reduce_scatter = coded_reduce_scatter,
	.cost = cost,
	.predict = predict,
};
