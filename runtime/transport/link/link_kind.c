/* The kinds of links of a transport: which one two ranks use, what went over each, and why one is not used. */
#define _GNU_SOURCE
#include "transport/link/link_kind.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>

static bool list_has(const char *list, const char *name)
{
	size_t n = strlen(name);
	for (const char *p = list; (p = strstr(p, name)); p += n)
		if ((p == list || strchr(", ", p[-1])) && (!p[n] || strchr(", ", p[n])))
			return true;
	return false;
}

gradcomp_status links_open(transport *t, const link_kind *const *kinds, int n, gradcomp_error *err)
{
	t->links = calloc(1, sizeof *t->links);
	if (!t->links)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the transport");
	t->links->n = n;
	for (int i = 0; i < n; i++)
		t->links->use[i] = (link_use){.kind = kinds[i], .allowed = list_has(t->allow, kinds[i]->name)};
	if (!links_allowed(t, true) && !links_allowed(t, false))
		return error_set(err, GRADCOMP_ERR_INVALID, "transport.allow=%s names no transport: shm, tcp, verbs",
		                 t->allow);
	return GRADCOMP_OK;
}

gradcomp_status links_start(transport *t, bool inherited, gradcomp_error *err)
{
	const link_kind *missing = NULL;
	gradcomp_error why;
	int ready = 0;
	for (int i = 0; i < t->links->n; i++) {
		link_use *u = &t->links->use[i];
		gradcomp_status st = GRADCOMP_OK;

		if (!u->allowed || (inherited && !u->kind->inherits))
			continue;
		if (u->kind->start)
			st = u->kind->start(u, t, &why);
		if (st && !u->kind->may_refuse)
			return error_set(err, st, "%s", why.text);
		if (st)
			missing = u->kind;
		ready += !st;
	}
	if (!ready && missing)
		return error_set(err, why.status, "transport.allow=%s, but %s cannot be used: %s", t->allow,
		                 missing->name, why.text);
	return GRADCOMP_OK;
}

void links_close(transport *t)
{
	for (int i = 0; t->links && i < t->links->n; i++)
		if (t->links->use[i].kind->stop)
			t->links->use[i].kind->stop(&t->links->use[i], t);
	free(t->links);
}

bool links_allowed(const transport *t, bool near)
{
	for (int i = 0; i < t->links->n; i++)
		if (t->links->use[i].allowed && t->links->use[i].kind->near == near)
			return true;
	return false;
}

void links_tell(const transport *t, endpoint_node *own)
{
	for (int i = 0; i < t->links->n; i++)
		if (t->links->use[i].kind->tell)
			t->links->use[i].kind->tell(&t->links->use[i], own);
}

void links_met(const transport *t)
{
	for (int i = 0; i < t->links->n; i++)
		if (t->links->use[i].kind->met)
			t->links->use[i].kind->met(&t->links->use[i], t);
}

/* The kind of links between any two ranks, which are assumed to have this rank's settings. */
static link_use *use_between(const transport *t, int a, int b)
{
	link_use *best = NULL;
	for (int i = 0; i < t->links->n; i++) {
		link_use *u = &t->links->use[i];

		if (u->allowed && (!best || u->kind->worth > best->kind->worth) && u->kind->reaches(u, t, a, b))
			best = u;
	}
	return best;
}

link_use *link_use_to(const transport *t, int rank)
{
	return use_between(t, t->rank, rank);
}

link_use *link_use_of(const transport *t, hello_kind hello)
{
	for (int i = 0; i < t->links->n; i++)
		if (t->links->use[i].kind->hello == hello)
			return &t->links->use[i];
	return NULL;
}

const char *transport_pair(const transport *t, int a, int b)
{
	const link_use *u = a == b ? NULL : use_between(t, a, b);
	return a == b ? "self" : u ? u->kind->name : "none";
}

const char *transport_kind(const transport *t, int rank)
{
	return transport_pair(t, t->rank, rank);
}

int transport_stats(const transport *t, transport_counts out[4])
{
	int n = 0;
	for (int i = 0; i < t->links->n; i++) {
		const link_use *u = &t->links->use[i];

		if (atomic_load(&u->pairs))
			out[n++] = (transport_counts){u->kind->name, atomic_load(&u->pairs), atomic_load(&u->sent),
			                              atomic_load(&u->received)};
	}
	return n;
}

int transport_link_map(const transport *t, link_map_row out[4])
{
	uint64_t pairs[LINK_KINDS_MAX] = {0};
	if (t->nranks > LINK_MAP_RANKS_MAX || !t->peers.endpoints)
		return 0;
	for (int a = 0; a < t->nranks; a++)
		for (int b = 0; b < a; b++) {
			const link_use *u = use_between(t, a, b);

			if (u)
				pairs[u - t->links->use]++;
		}
	for (int i = 0; i < t->links->n; i++) {
		const link_use *u = &t->links->use[i];

		out[i] = (link_map_row){u->kind->name, pairs[i],
		                        pairs[i]     ? NULL
		                        : u->allowed ? u->kind->why_not(u)
		                                     : "not allowed by transport.allow"};
	}
	return t->links->n;
}
