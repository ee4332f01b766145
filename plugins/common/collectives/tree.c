/* The tree's instance, and a rank's place in it. */
#include "tree.h"

#include "room.h"

gradcomp_status tree_room(tree *t, size_t bytes, gradcomp_error *err)
{
	return room_grow(t->host, &t->room, &t->room_bytes, bytes, "tree", err);
}

tree_place tree_find(const tree *t, int root)
{
	int P = t->nranks, me = (t->rank - root + P) % P, full = t->shape.full;
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
	tree_look(&t->shape, links, count);
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
