#include "io/transfer/bcast_tree.h"

#include <stdlib.h>

void bcast_tree_init(bcast_tree *t, uint32_t n, uint32_t radix)
{
	*t = (bcast_tree){.n = n, .radix = radix};
	for (uint64_t s = 1; s < n && t->nstrides < BCAST_STRIDES; s *= radix)
		t->stride[t->nstrides++] = (uint32_t)s;
	for (uint32_t d = 1; d < n; d++) {
		uint32_t hops = bcast_hops(t, d);
		t->hops = hops > t->hops ? hops : t->hops;
	}
}

uint32_t bcast_hops(const bcast_tree *t, uint32_t offset)
{
	uint32_t hops = 0;
	for (; offset; offset /= t->radix)
		hops += offset % t->radix;
	return hops;
}

uint32_t bcast_from(const bcast_tree *t, uint32_t offset)
{
	uint32_t k = 0;
	for (; k + 1 < t->nstrides && offset % t->radix == 0; k++)
		offset /= t->radix;
	return k;
}

uint32_t bcast_reach(const bcast_tree *t, uint32_t offset)
{
	uint32_t k = offset ? bcast_from(t, offset) : t->nstrides, n;
	/* The digit that is not 0 may become larger. */
	if (k < t->nstrides && offset / t->stride[k] % t->radix + 1 < t->radix)
		k++;
	for (n = 0; n < k && t->stride[n] < t->n - offset; n++)
		;
	return n;
}

void bcast_order_init(bcast_order *o, const bcast_tree *t, const uint32_t *owners, uint32_t nowners, uint32_t node,
                      uint64_t chunks)
{
	*o = (bcast_order){
		.tree = t, .owners = owners, .nowners = nowners, .node = node, .chunks = chunks, .hops = t->hops};
}

bool bcast_next(bcast_order *o, bcast_turn *out)
{
	const bcast_tree *t = o->tree;
	while (o->chunks && o->time < o->chunks + (uint64_t)BCAST_GAP * t->hops) {
		uint64_t late = (uint64_t)BCAST_GAP * o->hops, time = o->time;
		uint32_t hops = o->hops;
		/* Later hops are those of earlier chunks. */
		if (o->hops) {
			o->hops--;
		} else {
			o->hops = t->hops;
			o->time++;
		}
		if (time < late || time - late >= o->chunks)
			continue;
		uint32_t owner = o->owners[(time - late) % o->nowners], offset = (o->node + t->n - owner) % t->n;
		if (bcast_hops(t, offset) != hops)
			continue;
		*out = (bcast_turn){.chunk = time - late, .time = time, .owner = owner, .offset = offset};
		return true;
	}
	return false;
}

uint32_t bcast_crowd(const bcast_order *o)
{
	/* Chunks of owner k come every nowners: so do turns. */
	uint32_t *turns = calloc(o->nowners, sizeof *turns), most = 0;
	for (uint32_t k = 0; turns && k < o->nowners; k++) {
		uint32_t offset = (o->node + o->tree->n - o->owners[k]) % o->tree->n;
		turns[(k + (uint64_t)BCAST_GAP * bcast_hops(o->tree, offset)) % o->nowners]++;
	}
	for (uint32_t k = 0; turns && k < o->nowners; k++) {
		uint32_t sum = 0;
		for (uint32_t i = 0; i <= BCAST_GAP; i++)
			sum += turns[(k + i) % o->nowners];
		most = sum > most ? sum : most;
	}
	free(turns);
	return most;
}
