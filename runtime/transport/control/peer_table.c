/* The ranks of the job, from their endpoint records: hosts, nodes, and whether this node has more ranks than CPUs. */
#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* With more ranks on this node than CPUs they may run on, a rank that spins keeps the
 * one it waits for from running. */
static void peer_table_oversubscribed(transport *t, const endpoint_node *nodes, const char **lists)
{
	int nlocal = 0;
	for (int r = 0; r < t->nranks; r++)
		if (t->peers.node[r] == t->peers.node[t->rank])
			lists[nlocal++] = nodes[r].cpus;
	t->peers.ncpus = endpoint_count_cpus(lists, nlocal);
	t->peers.ncpus = t->peers.ncpus ? t->peers.ncpus : (int)sysconf(_SC_NPROCESSORS_ONLN);
	t->peers.nlocal = nlocal;
	t->peers.oversubscribed = nlocal > t->peers.ncpus;
}

gradcomp_status peer_table_read(transport *t, const char *const *texts, gradcomp_error *err)
{
	size_t n = (size_t)t->nranks;
	endpoint_node *nodes = calloc(n, sizeof *nodes);
	const char **keys = calloc(n, sizeof *keys);
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error why;
	t->peers.endpoints = calloc(n, sizeof *t->peers.endpoints);
	t->peers.node = calloc(n, sizeof *t->peers.node);
	if (!nodes || !keys || !t->peers.endpoints || !t->peers.node) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the endpoints of %d ranks", t->nranks);
		goto out;
	}
	for (int r = 0; r < t->nranks; r++) {
		st = endpoint_read(texts[r], &t->peers.endpoints[r], &nodes[r], &why);
		if (st) {
			error_set(err, st, "rank %d: %s", r, why.text);
			goto out;
		}
		if (nodes[r].frames != (int)t->o.frames) {
			st = error_set(
				err, GRADCOMP_ERR_MISMATCH,
				"rank %d on %s has security.frames=%s, rank %d has %s: all ranks must have the same", r,
				nodes[r].host, record_crypto_mode_name((frames_mode)nodes[r].frames), t->rank,
				record_crypto_mode_name(t->o.frames));
			goto out;
		}
		keys[r] = nodes[r].key;
	}
	t->peers.nnodes = endpoint_number_nodes(keys, t->nranks, t->peers.node);
	if (t->peers.nnodes < 0) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the endpoints of %d ranks", t->nranks);
		goto out;
	}
	networks_find(&t->peers.networks, t->peers.endpoints, t->peers.node, t->nranks, t->peers.nnodes);
	peer_table_oversubscribed(t, nodes, keys);
out:
	free(nodes);
	free(keys);
	return st;
}

gradcomp_status peer_table_inherit(transport *t, const transport *old, const int *peers, gradcomp_error *err)
{
	size_t n = (size_t)t->nranks;
	int32_t *renumbered = calloc((size_t)old->peers.nnodes + 1, sizeof *renumbered); /* a node's number + 1 */
	bool complete = renumbered;
	t->peers.endpoints = calloc(n, sizeof *t->peers.endpoints);
	t->peers.node = calloc(n, sizeof *t->peers.node);
	for (size_t r = 0; r < n && complete && t->peers.endpoints && t->peers.node; r++) {
		const endpoint *from = &old->peers.endpoints[peers[r]];
		endpoint *c = &t->peers.endpoints[r];
		int32_t *node = &renumbered[old->peers.node[peers[r]]];

		c->host = strdup(from->host);
		c->addr = malloc(from->naddr * sizeof *c->addr + 1);
		complete = c->host && c->addr;
		if (!complete)
			break;
		memcpy(c->addr, from->addr, from->naddr * sizeof *c->addr);
		c->naddr = from->naddr;
		atomic_init(&c->good, atomic_load(&from->good));
		c->aes = from->aes;
		c->unix_bytes = from->unix_bytes;
		memcpy(c->unix_name, from->unix_name, sizeof c->unix_name);
		if (!*node)
			*node = ++t->peers.nnodes;
		t->peers.node[r] = *node - 1;
	}
	complete = complete && t->peers.endpoints && t->peers.node;
	for (int r = 0; complete && r < t->nranks; r++)
		t->peers.nlocal += t->peers.node[r] == t->peers.node[t->rank];
	t->peers.networks = old->peers.networks;
	t->peers.ncpus = old->peers.ncpus;
	t->peers.oversubscribed = t->peers.nlocal > t->peers.ncpus;
	free(renumbered);
	return complete ? GRADCOMP_OK
	                : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the endpoints of %d ranks", t->nranks);
}

void peer_table_free(peer_table *p, int nranks)
{
	for (int r = 0; p->endpoints && r < nranks; r++)
		endpoint_clear(&p->endpoints[r]);
	free(p->endpoints);
	free(p->node);
}

bool peer_share(const transport *t, int a, int b)
{
	return t->peers.node[a] == t->peers.node[b] && t->peers.endpoints[a].unix_bytes &&
	       t->peers.endpoints[b].unix_bytes;
}

bool peer_has_address(const transport *t, int rank)
{
	return rank == t->rank || t->peers.endpoints[rank].naddr;
}

const char *transport_host(const transport *t, int rank)
{
	return t->peers.endpoints && rank >= 0 && rank < t->nranks && t->peers.endpoints[rank].host
	               ? t->peers.endpoints[rank].host
	               : "?";
}

const int32_t *transport_nodes(const transport *t, int *nnodes)
{
	*nnodes = t->peers.nnodes;
	return t->peers.node;
}
