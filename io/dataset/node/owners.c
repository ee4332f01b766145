#include "io/dataset/node/owners.h"

#include <stdlib.h>
#include <string.h>

#define PIECE 128 /* slots of a page of 4 KiB */
#define PIECES 16 /* pieces of a lost node for each other node, at least, where it has as many samples */
#define TRIES 64  /* before the next node that is left takes a piece */

static uint64_t rows(const owners *o)
{
	return permutation_length(o->first.count, (uint64_t)o->nranks, 0);
}

uint64_t owners_slots(const owners *o, int node)
{
	return rows(o) * (uint64_t)o->nlocal[node];
}

uint64_t owners_table(const owners *o, int node)
{
	return o->section ? rows(o) * (uint64_t)o->nranks : owners_slots(o, node);
}

gradcomp_status owners_init(owners *o, const int32_t *node_of, const int32_t *local_of, int nranks, int nnodes,
                            bool endures, gradcomp_error *err)
{
	uint64_t slots = 0;
	o->nranks = nranks;
	o->nnodes = nnodes;
	o->node_of = malloc((size_t)nranks * sizeof *o->node_of);
	o->local_of = malloc((size_t)nranks * sizeof *o->local_of);
	o->nlocal = calloc((size_t)nnodes, sizeof *o->nlocal);
	endures = endures && nnodes > 1;
	o->section = endures ? calloc((size_t)nnodes, sizeof *o->section) : NULL;
	if (!o->node_of || !o->local_of || !o->nlocal || (endures && !o->section))
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a dataset of %d ranks", nranks);
	memcpy(o->node_of, node_of, (size_t)nranks * sizeof *node_of);
	memcpy(o->local_of, local_of, (size_t)nranks * sizeof *local_of);
	for (int r = 0; r < nranks; r++)
		o->nlocal[node_of[r]]++;
	for (int n = 0; endures && n < nnodes; n++) {
		o->section[n] = slots;
		slots += owners_slots(o, n);
	}
	return GRADCOMP_OK;
}

void owners_clear(owners *o)
{
	free(o->node_of);
	free(o->local_of);
	free(o->nlocal);
	free(o->section);
	*o = (owners){0};
}

static bool is_lost(const owners *o, int node)
{
	return atomic_load_explicit(&o->lost[node], memory_order_relaxed);
}

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 31) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 29) * 0x94d049bb133111ebu;
	return x ^ x >> 32;
}

/* The pieces of the first node that is lost are dealt out in turn. Those that are lost again with the node that
 * took them go where a number drawn for each of them says: to all others alike, whichever are lost. */
static int heir(const owners *o, int node, uint64_t slot)
{
	uint64_t n = (uint64_t)o->nnodes, piece = owners_slots(o, node) / (PIECES * n), k;
	int to;
	piece = piece < 1 ? 1 : piece < PIECE ? piece : PIECE;
	k = slot / piece;
	to = (int)(((uint64_t)node + 1 + k % (n - 1)) % n);
	for (uint64_t tries = 1; is_lost(o, to); tries++)
		to = tries < TRIES ? (int)(mix(k * TRIES + tries + ((uint64_t)node << 40)) % n)
		                   : (int)(((uint64_t)to + 1) % n);
	return to;
}

void owners_find(const owners *o, uint64_t index, sample_owner *out)
{
	uint64_t at = permutation_find(&o->first, index), n = (uint64_t)o->nranks;
	int rank = (int)(at % n), node = o->node_of[rank];
	uint64_t slot = at / n * (uint64_t)o->nlocal[node] + (uint64_t)o->local_of[rank];
	*out = (sample_owner){node, slot};
	if (!o->section)
		return;
	out->slot += o->section[node];
	if (is_lost(o, node))
		out->node = heir(o, node, slot);
}
