/* Who stages together: one rank of each node, and the ranks that wait for it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "crew.h"

/* ---- who acts ---------------------------------------------------------------------------- */

struct opening {
	crew *c;
	gradcomp_group *group;
	const int32_t *node; /* of its ranks */
};

static gradcomp_status split(void *ctx, gradcomp_error *err)
{
	const struct opening *o = ctx;
	crew *c = o->c;
	int me = gradcomp_group_rank(o->group), n = gradcomp_group_nranks(o->group), first = me, mates = 0;
	bool one = true; /* a rank a node, everywhere */
	for (int r = n; r-- > 0;)
		if (o->node[r] == o->node[me]) {
			first = r;
			mates++;
		}
	for (int r = 1; r < n; r++)
		one = one && o->node[r] > o->node[r - 1];
	c->acting = first == me;
	if (one) {
		c->nodes = o->group;
		return GRADCOMP_OK;
	}
	c->split = true;
	gradcomp_status status = gradcomp_group_split(o->group, c->acting ? 0 : -1, me, &c->nodes, err);
	return status ? status : gradcomp_group_split(o->group, o->node[me], me, &c->mates, err);
}

static gradcomp_status meet(crew *c, gradcomp_error *err)
{
	char mine[CREW_HOST] = "";
	c->ring.node = c->nodes ? gradcomp_group_rank(c->nodes) : 0;
	c->ring.nnodes = c->nodes ? gradcomp_group_nranks(c->nodes) : 1;
	c->host = calloc((size_t)c->ring.nnodes, sizeof *c->host);
	c->hosts = calloc((size_t)c->ring.nnodes, sizeof *c->hosts);
	if (!c->host || !c->hosts)
		return error_set(err, GRADCOMP_ERR_NOMEM, "out of memory for the names of %d nodes", c->ring.nnodes);
	gethostname(mine, sizeof mine - 1);
	gradcomp_status status = crew_gather(c, mine, c->host, sizeof mine, err);
	for (int i = 0; !status && i < c->ring.nnodes; i++) {
		c->host[i][CREW_HOST - 1] = 0;
		c->hosts[i] = c->host[i];
	}
	c->ring.hosts = c->hosts;
	return status;
}

gradcomp_status crew_open(crew *c, stage_run *run, gradcomp_group *group, gradcomp_error *err)
{
	struct opening o = {.c = c, .group = group};
	const gradcomp_links *links = NULL;
	gradcomp_status status = GRADCOMP_OK;
	*c = (crew){.run = run, .acting = true};
	if (group && gradcomp_group_nranks(group) > 1) {
		if ((status = gradcomp_links_open(group, &links, err)))
			return status;
		o.node = links->node;
		status = crew_aside(c, split, &o, err);
		gradcomp_links_close(group, links);
	}
	return status || !c->acting ? status : meet(c, err);
}

void crew_close(crew *c)
{
	for (int i = 0; i < 3; i++)
		if (c->links[i])
			gradcomp_links_close(c->nodes, c->links[i]);
	if (c->split) {
		gradcomp_group_free(c->nodes);
		gradcomp_group_free(c->mates);
	}
	free(c->host);
	free(c->hosts);
}

/* Three channels, so that a node sends over another one than it receives over: each
 * belongs to one thread. */
gradcomp_status crew_ring(crew *c, gradcomp_error *err)
{
	int n = c->ring.nnodes, me = c->ring.node, before = (me + n - 1) % n;
	gradcomp_status status = GRADCOMP_OK;
	for (int i = 0; n > 1 && !status && i < 3; i++)
		if (!c->links[i])
			status = gradcomp_links_open(c->nodes, &c->links[i], err);
	c->ring.out = c->links[n % 2 && me == n - 1 ? 2 : me % 2];
	c->ring.in = c->links[n % 2 && before == n - 1 ? 2 : before % 2];
	return status;
}

/* ---- the other ranks of a node ------------------------------------------------------------- */

struct outcome {
	int32_t status;
	char text[sizeof((gradcomp_error *)0)->text];
	gradcomp_stage_result result;
};

struct telling {
	crew *c;
	struct outcome *outcome;
};

static gradcomp_status tell(void *ctx, gradcomp_error *err)
{
	const struct telling *t = ctx;
	return gradcomp_broadcast(t->c->mates, t->outcome, sizeof *t->outcome, GRADCOMP_U8, 0, err);
}

gradcomp_status crew_tell(crew *c, gradcomp_stage_result *result, gradcomp_status status, gradcomp_error *err)
{
	struct outcome o;
	struct telling t = {c, &o};
	if (!c->mates)
		return status;
	memset(&o, 0, sizeof o);
	o.status = status;
	memcpy(&o.result, result, sizeof o.result);
	if (status)
		snprintf(o.text, sizeof o.text, "%s", err->text);
	gradcomp_status told = crew_aside(c, tell, &t, err);
	if (told)
		return status ? status : told;
	*result = o.result;
	o.text[sizeof o.text - 1] = 0;
	return o.status ? error_set(err, (gradcomp_status)o.status, "%s", o.text) : GRADCOMP_OK;
}
