/* What direct's calls cost. */
#include "direct.h"

/* Stripes to their owners, or from them, or both: so many trips of everybody to everybody. */
static int trips(uint32_t primitive)
{
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
	case GRADCOMP_CAN_CODED_ALLREDUCE:
	case GRADCOMP_CAN_EXCHANGE:
		return 2;
	case GRADCOMP_CAN_REDUCE_SCATTER:
	case GRADCOMP_CAN_CODED_REDUCE_SCATTER:
	case GRADCOMP_CAN_ALLGATHER:
	case GRADCOMP_CAN_CODED_ALLGATHER:
	case GRADCOMP_CAN_ALLTOALL:
		return 1;
	}
	return 0;
}

gradcomp_status direct_predict(int32_t nranks, int32_t nnodes, uint32_t primitive, uint64_t bytes,
                               gradcomp_call_load *out, gradcomp_error *err)
{
	int n = trips(primitive), sums = primitive == GRADCOMP_CAN_ALLREDUCE || primitive == GRADCOMP_CAN_REDUCE_SCATTER;
	double stripe = primitive == GRADCOMP_CAN_ALLTOALL ? (double)bytes
	                                                   : (double)load_all(primitive, nranks, bytes) / nranks;
	load_group g;
	load l = {0};
	gradcomp_status st;
	if (primitive == GRADCOMP_CAN_MERGE)
		return load_refuse("direct", primitive, err);
	if (!n || (primitive == GRADCOMP_CAN_ALLREDUCE && direct_is_short(nranks, bytes)))
		return tree_predict(nranks, nnodes, primitive, bytes, out, err);
	st = load_group_open(&g, "direct", nranks, nnodes, err);
	if (st)
		return st;
	load_senders s = load_look_to_all(&g.links, g.count);
	for (int k = 0; nranks > 1 && k < n; k++)
		load_add_to_all(&l, &s, nranks, stripe);
	l.reduced = sums ? (nranks - 1) * stripe : 0;
	if (primitive & LOAD_CODED)
		l.coded = load_coded(nranks, primitive, stripe / sizeof(float));
	load_group_close(&g);
	load_tell(&l, out);
	return GRADCOMP_OK;
}

void direct_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const direct *d = instance;
	if (direct_is_short(d->nranks, bytes)) {
		tree_cost(d->tree, bytes, sent, messages);
		return;
	}
	*sent = 2 * (double)bytes * (d->nranks - 1) / d->nranks;
	*messages = 2.0 * (d->nranks - 1);
}
