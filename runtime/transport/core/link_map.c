/* The kind of link between each pair of ranks, what went over each kind, and why one is not used: for the report. */
#include "transport/core/transport_internal.h"

const char *const link_kind_name[KINDS] = {[KIND_SHM] = "shm", [KIND_TCP] = "tcp", [KIND_VERBS] = "verbs"};

const char *transport_kind(const transport *t, int rank)
{
	int kind;

	if (rank == t->rank)
		return "self";
	kind = connect_kind(t, rank);
	return kind < 0 ? "none" : link_kind_name[kind];
}

int transport_stats(const transport *t, transport_counts out[4])
{
	int n = 0;

	for (int k = 0; k < KINDS; k++)
		if (atomic_load(&t->counts[k].pairs))
			out[n++] = (transport_counts){link_kind_name[k], atomic_load(&t->counts[k].pairs),
			                              atomic_load(&t->counts[k].sent),
			                              atomic_load(&t->counts[k].received)};
	return n;
}

/* As connect_kind() on rank a, which is assumed to have this rank's settings. */
static int link_map_kind(const transport *t, int a, int b)
{
	const endpoint *x = &t->endpoints[a], *y = &t->endpoints[b];

	if (a == t->rank || b == t->rank)
		return connect_kind(t, a == t->rank ? b : a);
	if (t->allow_shm && t->node[a] == t->node[b] && x->unix_bytes && y->unix_bytes)
		return KIND_SHM;
	if (t->allow_verbs && x->verbs && x->verbs == y->verbs && x->naddr && y->naddr)
		return KIND_VERBS;
	return t->allow_tcp && x->naddr && y->naddr ? KIND_TCP : -1;
}

const char *transport_pair(const transport *t, int a, int b)
{
	int kind = a == b ? KINDS : link_map_kind(t, a, b);

	return kind == KINDS ? "self" : kind < 0 ? "none" : link_kind_name[kind];
}

static const char *link_map_why_not(const transport *t, int kind)
{
	const int allowed[KINDS] = {
		[KIND_SHM] = t->allow_shm, [KIND_TCP] = t->allow_tcp, [KIND_VERBS] = t->allow_verbs};

	if (!allowed[kind])
		return "not allowed by transport.allow";
	if (kind == KIND_SHM)
		return "no two ranks can share memory: each is on a node, or in a network namespace or of a user, of its own";
	if (kind == KIND_TCP)
		return "not needed";
	return t->verbs ? "no two ranks of different nodes have devices on one network"
	                : "this rank has no device that can be used";
}

int transport_link_map(const transport *t, link_map_row out[4])
{
	uint64_t pairs[KINDS] = {0};

	if (t->nranks > LINK_MAP_RANKS_MAX || !t->endpoints)
		return 0;
	for (int a = 0; a < t->nranks; a++)
		for (int b = 0; b < a; b++) {
			int kind = link_map_kind(t, a, b);

			if (kind >= 0)
				pairs[kind]++;
		}
	for (int k = 0; k < KINDS; k++)
		out[k] = (link_map_row){link_kind_name[k], pairs[k], pairs[k] ? NULL : link_map_why_not(t, k)};
	return KINDS;
}
