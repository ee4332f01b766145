/* auto: every call goes the way that is fastest for its size over this group's links, as they were measured when
 * the group first used them: between all peers at once, by recursive doubling or halving, down a tree, in two
 * levels, around the ring, or, of few ranks on several nodes, stripe by stripe between all; long all-gathers
 * within a node straight from each rank to all others. Coded sums go
 * around the ring, but where nobody keeps what is lost: in two levels of several nodes, else in two steps. Merges go
 * down the tree. */
#include "plugins/collectives/auto/auto_internal.h"

#include "plugins/common/collectives/blocks.h"
#include "plugins/common/collectives/coding.h"

enum { PARAM_CHUNK, PARAM_FIT };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk",
                         .type = GRADCOMP_PARAM_SIZE,
                         .def = "0",
                         .min = 0,
                         .max = 1 << 30,
                         .help = "piece that is sent at a time; 0: what the links do best"},
	[PARAM_FIT] = {.name = "fit",
                       .type = GRADCOMP_PARAM_STRING,
                       .def = "",
                       .help = "what messages cost, as an earlier job logged it; empty: it is measured"},
};

static gradcomp_status check(const gradcomp_host *host, const gradcomp_value *values, gradcomp_error *err)
{
	const char *fit = values[PARAM_FIT].s;
	link_fit read;
	if (*fit && auto_fit_read(fit, &read))
		return host->fail(err, GRADCOMP_ERR_INVALID,
		                  "fit=%.60s is not %d or %d whole numbers of nanoseconds with '/' between them", fit,
		                  FIT_SIZES + 1, CALL_LEVELS * (FIT_SIZES + 1));
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	automatic *a = instance;
	if (!a)
		return;
	const gradcomp_host *host = a->host;
	ring_destroy(a->ring);
	rhd_destroy(a->rhd);
	hier_destroy(a->levels);
	direct_destroy(a->straight);
	host->release(a->counts);
	host->release(a);
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	size_t chunk = (size_t)values[PARAM_CHUNK].i;
	const ring_options pieces = {.chunk = chunk};
	automatic *a = host->alloc(sizeof *a);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	gradcomp_status st = GRADCOMP_OK;
	if (a)
		a->host = host;
	if (!a || !count) {
		st = host->fail(err, GRADCOMP_ERR_NOMEM, "auto: no memory for an instance of %d ranks", links->nranks);
		goto done;
	}
	a->links = links;
	a->measured = *values[PARAM_FIT].s && !auto_fit_read(values[PARAM_FIT].s, &a->shape.fit);
	a->shape.nranks = links->nranks;
	ring_scan(&a->shape.ring, links, 0, chunk, count);
	a->shape.straight = auto_straight(links->nranks, links->nnodes, direct_has_one_copy(links));
	a->shape.across = auto_across(links->nranks, links->nnodes);
	a->shape.to_all = call_scan_to_all(links, count);
	st = ring_create(host, links, &pieces, &a->ring, err);
	if (!st)
		st = rhd_create(host, links, chunk, 0, &a->rhd, err);
	if (!st && links->nnodes > 1 && links->nnodes < links->nranks)
		st = hier_create(host, links, chunk, 0, &a->levels, err);
	if (!st && (a->shape.straight || a->shape.across)) {
		a->counts = host->alloc((size_t)links->nranks * sizeof *a->counts);
		st = a->counts ? direct_create(host, links, chunk, &a->straight, err)
		               : host->fail(err, GRADCOMP_ERR_NOMEM, "auto: no memory for %d ranks", links->nranks);
	}
	if (st)
		goto done;
	a->shape.rhd = &a->rhd->shape;
	a->shape.levels = a->levels ? &a->levels->shape : NULL;
done:
	host->release(count);
	if (st)
		destroy(a);
	else
		*instance = a;
	return st;
}

/* Blocks are summed around the ring, and go from their ranks to all others. */
static gradcomp_status allreduce_straight(automatic *a, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                          double scale, gradcomp_error *err)
{
	int P = a->links->nranks;
	for (int r = 0; r < P; r++)
		a->counts[r] = blocks_count(count, P, r);
	gradcomp_status st = ring_reduce_scatter(a->ring, buf, a->counts, dtype, op, scale, err);
	for (int r = 0; r < P; r++)
		a->counts[r] *= gradcomp_dtype_bytes(dtype);
	return st ? st : direct_allgather(a->straight, buf, a->counts, err);
}

static gradcomp_status allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err)
{
	automatic *a = instance;
	gradcomp_status st = auto_measure(a, err);
	if (st)
		return st;
	switch (auto_choose(a, CALL_ALLREDUCE, count * gradcomp_dtype_bytes(dtype))) {
	case PEERS:
	case RING:
		return ring_allreduce(a->ring, buf, count, dtype, op, scale, err);
	case TREE:
		return tree_allreduce(a->rhd->tree, buf, count, dtype, op, scale, err);
	case LEVELS:
		return hier_allreduce(a->levels, buf, count, dtype, op, scale, err);
	case ACROSS:
		return direct_allreduce(a->straight, buf, count, dtype, op, scale, err);
	case STRAIGHT:
		return allreduce_straight(a, buf, count, dtype, op, scale, err);
	default:
		return rhd_allreduce(a->rhd, buf, count, dtype, op, scale, err);
	}
}

static uint64_t total(const automatic *a, const uint64_t *counts)
{
	uint64_t sum = 0;
	for (int r = 0; r < a->links->nranks; r++)
		sum += counts[r];
	return sum;
}

static gradcomp_status reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err)
{
	automatic *a = instance;
	gradcomp_status st = auto_measure(a, err);
	if (st)
		return st;
	switch (auto_choose(a, CALL_REDUCE_SCATTER, total(a, counts) * gradcomp_dtype_bytes(dtype))) {
	case ACROSS:
		return direct_reduce_scatter(a->straight, buf, counts, dtype, op, scale, err);
	case RING:
		return ring_reduce_scatter(a->ring, buf, counts, dtype, op, scale, err);
	default:
		return rhd_reduce_scatter(a->rhd, buf, counts, dtype, op, scale, err);
	}
}

/* Returns 1 when no rank has much more than the others: straight it would send all of that P - 1 times alone, where
 * a ring has the others pass it on meanwhile. */
static int even(const automatic *a, const uint64_t *bytes, uint64_t sum)
{
	for (int r = 0; r < a->links->nranks; r++)
		if (bytes[r] / 2 > sum / (uint64_t)a->links->nranks)
			return 0;
	return 1;
}

static gradcomp_status allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err)
{
	automatic *a = instance;
	uint64_t sum = total(a, bytes);
	gradcomp_status st = auto_measure(a, err);
	if (st)
		return st;
	switch (auto_choose(a, CALL_ALLGATHER, sum)) {
	case ACROSS:
	case STRAIGHT:
		if (even(a, bytes, sum))
			return direct_allgather(a->straight, buf, bytes, err);
		return ring_allgather(a->ring, buf, bytes, err);
	case RING:
		return ring_allgather(a->ring, buf, bytes, err);
	default:
		return rhd_allgather(a->rhd, buf, bytes, err);
	}
}

static gradcomp_status broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err)
{
	automatic *a = instance;
	gradcomp_status st = auto_measure(a, err);
	if (st)
		return st;
	switch (auto_choose(a, CALL_BROADCAST, bytes)) {
	case TREE:
		return tree_broadcast(a->rhd->tree, buf, bytes, root, err);
	case RING:
		return ring_broadcast(a->ring, buf, bytes, root, err);
	default:
		return rhd_broadcast(a->rhd, buf, bytes, root, err);
	}
}

static gradcomp_status barrier(void *instance, gradcomp_error *err)
{
	automatic *a = instance;
	return rhd_barrier(a->rhd, err);
}

static gradcomp_status merge(void *instance, gradcomp_payload *inout, uint64_t bound, const gradcomp_merger *merger,
                             gradcomp_error *err)
{
	automatic *a = instance;
	return tree_merge(a->rhd->tree, inout, bound, merger, err);
}

static gradcomp_status coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err)
{
	automatic *a = instance;
	if (a->levels && coding_loses(codec, residual))
		return hier_coded_allreduce(a->levels, buf, count, scale, codec, counter, residual, err);
	return ring_coded_allreduce(a->ring, buf, count, scale, codec, counter, residual, err);
}

static gradcomp_status coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                       uint64_t counter, float *residual, gradcomp_error *err)
{
	automatic *a = instance;
	return ring_coded_allgather(a->ring, buf, counts, codec, counter, residual, err);
}

static gradcomp_status coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err)
{
	automatic *a = instance;
	if (a->levels && coding_loses(codec, residual))
		return hier_coded_reduce_scatter(a->levels, buf, counts, scale, codec, counter, residual, err);
	return ring_coded_reduce_scatter(a->ring, buf, counts, scale, codec, counter, residual, err);
}

static void cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	automatic *a = instance;
	switch (a->measured ? auto_choose(a, CALL_ALLREDUCE, bytes) : HALVED) {
	case PEERS:
	case RING:
	case ACROSS:
	case STRAIGHT: /* sends as many bytes and messages as the ring */
		ring_cost(a->ring, bytes, sent, messages);
		break;
	case TREE:
		tree_cost(a->rhd->tree, bytes, sent, messages);
		break;
	case LEVELS:
		hier_cost(a->levels, bytes, sent, messages);
		break;
	default:
		rhd_cost(a->rhd, bytes, sent, messages);
	}
}

/* Sets what a message costs where nothing was measured: shared memory, and a network of 10 Gbit/s. */
static void usual_fit(link_fit *fit)
{
	for (int k = 0; k < FIT_SIZES; k++) {
		fit->seconds[CALL_WITHIN][k] = 5e-6 + 0.25e-9 * fit_sizes[k];
		fit->seconds[CALL_BETWEEN][k] = 30e-6 + 0.9e-9 * fit_sizes[k];
	}
	for (int k = 0; k < CALL_LEVELS; k++)
		fit->further[k] = CALL_FURTHER * fit->seconds[k][0];
}

static gradcomp_status predict(const gradcomp_value *values, int32_t nranks, int32_t nnodes, uint32_t primitive,
                               uint64_t bytes, gradcomp_call_load *out, gradcomp_error *err)
{
	link_fit fit;
	if (!*values[PARAM_FIT].s || auto_fit_read(values[PARAM_FIT].s, &fit))
		usual_fit(&fit);
	return auto_predict(&fit, nranks, nnodes, (size_t)values[PARAM_CHUNK].i, primitive, bytes, out, err);
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION,
                 .struct_size = sizeof(struct gradcomp_collective_v1),
                 .name = "auto",
                 .version = "1.0",
                 .licence = "MIT",
                 .summary =
                         "ring, rhd, tree, direct or hier, call by call, by size and what the links were measured to cost",
                 .params = params,
                 .nparams = sizeof params / sizeof params[0]},
	.traits = GRADCOMP_TRAIT_ALL_TYPES,
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_REDUCE_SCATTER | GRADCOMP_CAN_ALLGATHER |
                  GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER | GRADCOMP_CAN_MERGE | GRADCOMP_CAN_CODED_ALLREDUCE |
                  GRADCOMP_CAN_CODED_ALLGATHER | GRADCOMP_CAN_CODED_REDUCE_SCATTER | GRADCOMP_CAN_OWNED_SUMS,
	.check = check,
	.create = create,
	.destroy = destroy,
	.allreduce = allreduce,
	.reduce_scatter = reduce_scatter,
	.allgather = allgather,
	.broadcast = broadcast,
	.barrier = barrier,
	.merge = merge,
	.coded_allreduce = coded_allreduce,
	.coded_allgather = coded_allgather,
	.coded_reduce_scatter = coded_reduce_scatter,
	.cost = cost,
	.predict = predict,
};
