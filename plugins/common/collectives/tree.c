/* The tree's instance, and a rank's place in it. */
#include "tree.h"

#include "room.h"

gradcomp_status tree_room(tree *t, size_t bytes, gradcomp_error *err)
{
	return room_grow(t->host, &t->room, &t->room_bytes, bytes, "tree", err);
}

static int full_tree(int n)
{
	int full = 1;
	while (full <= n / 2)
		full *= 2;
	return full;
}

tree_place tree_find(const tree *t, int root)
{
	int P = t->nranks, me = (t->rank - root + P) % P, full = t->full;
	tree_place place = {.parent = -1};
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

/* Down: in the trip of the fold, and in that of bit d. */
static int unfold(int p, int d, int n)
{
	return p + d < n ? p + d : -1;
}

static int hand_down(int p, int d, int n)
{
	return p % (2 * d) == 0 && p + d < full_tree(n) ? p + d : -1;
}

gradcomp_status tree_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, tree **out,
                            gradcomp_error *err)
{
	tree *t = host->alloc(sizeof *t);
	int32_t *count = host->alloc((size_t)links->nnodes * sizeof *count);
	if (!t || !count) {
		host->release(count);
		host->release(t);
		return host->fail(err, GRADCOMP_ERR_NOMEM, "tree: no memory for an instance of %d ranks", links->nranks);
	}
	t->host = host;
	t->links = links;
	t->rank = links->rank;
	t->nranks = links->nranks;
	t->piece = ((chunk ? chunk : links->chunk) + 63) & ~(size_t)63;
	t->full = full_tree(t->nranks);
	t->senders[0] = load_senders(links, NULL, unfold, t->full, count);
	for (int k = 1, d = 1; d < t->full; d *= 2, k++)
		t->senders[k] = load_senders(links, NULL, hand_down, d, count);
	host->release(count);
	*out = t;
	return GRADCOMP_OK;
}

void tree_destroy(void *instance)
{
	tree *t = instance;
	if (!t)
		return;
	const gradcomp_host *host = t->host;
	host->release(t->room);
	host->release(t);
}

void tree_load(const tree *t, load_call call, uint64_t bytes, load *out)
{
	double times = call == LOAD_ALLREDUCE ? 2 : 1;
	out->n = 0;
	if (t->full < t->nranks)
		load_add(out, t->senders[0], times, (double)bytes);
	for (int k = 1, d = 1; d < t->full; d *= 2, k++)
		load_add(out, t->senders[k], times, (double)bytes);
}

void tree_cost(void *instance, uint64_t bytes, double *sent, double *messages)
{
	const tree *t = instance;
	tree_place p = tree_find(t, 0);
	load l;
	tree_load(t, LOAD_ALLREDUCE, bytes, &l);
	*sent = (double)bytes * (p.nchildren + (p.parent >= 0));
	*messages = load_messages(&l);
}
