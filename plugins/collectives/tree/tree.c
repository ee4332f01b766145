/* tree: all-reduce, broadcast, barrier and all-gather in ceil(log2 P) trips, for
 * what is short or for many ranks, and the reduction tree of gTop-k (Shi et al.,
 * ICDCS 2019), in which two payloads become one at every meeting. The root alone
 * computes a result and hands out its bytes, so all ranks end with the same bits. */
#include "tree.h"

#include "room.h"

enum { PARAM_CHUNK };

static const gradcomp_param params[] = {
	[PARAM_CHUNK] = {.name = "chunk", .type = GRADCOMP_PARAM_SIZE, .def = "0", .min = 0, .max = 1 << 30,
	                 .help = "piece that is sent at a time; 0: what the links do best"},
};

gradcomp_status tree_room(tree *t, size_t bytes, gradcomp_error *err)
{
	return room_grow(t->host, &t->room, &t->room_bytes, bytes, "tree", err);
}

tree_place tree_find(const tree *t, int root)
{
	int P = t->nranks, me = (t->rank - root + P) % P, full = 1;
	tree_place place = {.parent = -1};
	while (full <= P / 2)
		full *= 2;
	if (me >= full) {
		place.parent = (me - full + root) % P;
		return place;
	}
	if (me + full < P)
		place.child[place.nchildren++] = (me + full + root) % P;
	for (int bit = 1; bit < full; bit *= 2) {
		if (me & bit) {
			place.parent = (me - bit + root) % P;
			break;
		}
		place.child[place.nchildren++] = (me + bit + root) % P;
	}
	return place;
}

static gradcomp_status create(const gradcomp_host *host, const gradcomp_value *values, const gradcomp_links *links,
                              void **instance, gradcomp_error *err)
{
	tree *t = host->alloc(sizeof *t);
	if (!t)
		return host->fail(err, GRADCOMP_ERR_NOMEM, "tree: no memory for an instance of %d ranks", links->nranks);
	t->host = host;
	t->links = links;
	t->rank = links->rank;
	t->nranks = links->nranks;
	t->piece = ((values[PARAM_CHUNK].i ? (size_t)values[PARAM_CHUNK].i : links->chunk) + 63) & ~(size_t)63;
	*instance = t;
	return GRADCOMP_OK;
}

static void destroy(void *instance)
{
	tree *t = instance;
	if (!t)
		return;
	const gradcomp_host *host = t->host;
	host->release(t->room);
	host->release(t);
}

static void cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const tree *t = instance;
	double trips = 0;
	for (int reach = 1; reach < t->nranks; reach *= 2)
		trips++;
	*sent = 2 * (double)bytes * (t->nranks - 1) / t->nranks;
	*messages = 2 * trips;
}

GRADCOMP_EXPORT const struct gradcomp_collective_v1 gradcomp_collective_v1 = {
	.info = {.abi_version = GRADCOMP_ABI_VERSION, .struct_size = sizeof(struct gradcomp_collective_v1),
	         .name = "tree", .version = "1.0", .licence = "MIT",
	         .summary = "binomial tree: few trips for short messages, and merges payloads",
	         .params = params, .nparams = sizeof params / sizeof params[0]},
	.serves = GRADCOMP_CAN_ALLREDUCE | GRADCOMP_CAN_ALLGATHER | GRADCOMP_CAN_BROADCAST | GRADCOMP_CAN_BARRIER |
	          GRADCOMP_CAN_MERGE,
	.create = create,
	.destroy = destroy,
	.allreduce = tree_allreduce,
	.allgather = tree_allgather,
	.broadcast = tree_broadcast,
	.barrier = tree_barrier,
	.merge = tree_merge,
	.cost = cost,
};
