/* Measures what a message and a byte of it cost, within nodes and between them: everybody sends to the right and
 * receives from the left, as in a ring, so both ways of a link are in use. Within nodes all ranks of all nodes at
 * once; between nodes one rank of each. */
#include "tools/probe.h"

#include "tools/bench.h"

#include <stdlib.h>

/* The first one is short and connects. They are sent in a row, so that it matters little who
 * began it late. */
static const uint32_t sizes[] = {64, 4 << 10, 32 << 10, 256 << 10, 1 << 20, 4 << 20};
enum { SIZES = sizeof sizes / sizeof sizes[0], ROW = 20, LONG_ROW = 4, LONG = 64 << 10 };

static gradcomp_status trip(const gradcomp_links *l, char *out, char *in, size_t bytes, gradcomp_error *err)
{
	gradcomp_request came, went;
	int P = l->nranks;
	gradcomp_status st = l->recv(l->ctx, (l->rank + P - 1) % P, in, bytes, &came, err);
	if (!st)
		st = l->send(l->ctx, (l->rank + 1) % P, out, bytes, &went, err);
	if (!st)
		st = l->wait(l->ctx, &came, err);
	return st ? st : l->wait(l->ctx, &went, err);
}

/* links: NULL on a rank that only keeps count. */
static gradcomp_status level(probe *p, const gradcomp_links *links, double seconds, linear *out, gradcomp_error *err)
{
	fit_point point[SIZES];
	int n = 0;
	double last = 0;
	char *room = calloc(2, sizes[SIZES - 1]);
	gradcomp_status st = GRADCOMP_OK;
	if (!room) {
		probe_nomem(err, "messages to measure with");
		return GRADCOMP_ERR_NOMEM;
	}
	for (int k = -1; !st && k < SIZES; k++) {
		uint32_t bytes = sizes[k < 0 ? 0 : k];
		int row = bytes < LONG ? ROW : LONG_ROW;
		probe_samples s = {.most = k < 0 ? 0 : seconds / SIZES};
		/* On a slow network what is longer is told well enough by what is shorter. */
		if (k > 2 && last * bytes / sizes[k - 1] * (LONG_ROW + 1) > 2 * s.most)
			break;
		while (!st && probe_wants(&s)) {
			double t = 0;
			st = probe_barrier(p, err);
			/* The bytes that a switch or a traffic shaper lets pass after a pause are used up first. */
			if (links && !st && row == LONG_ROW)
				st = trip(links, room, room + sizes[SIZES - 1], bytes, err);
			double start = clock_now();
			for (int i = 0; links && !st && i < row; i++)
				st = trip(links, room, room + sizes[SIZES - 1], bytes, err);
			t = links ? (clock_now() - start) / row : 0;
			if (!st)
				st = probe_slowest(p, &t, err);
			probe_add(&s, t);
		}
		last = probe_median(&s);
		if (k >= 0)
			point[n++] = (fit_point){1, bytes, last};
	}
	free(room);
	if (!st)
		*out = probe_ends(point, n);
	return st;
}

static gradcomp_status within(probe *p, gradcomp_group *group, int takes_part, double seconds, linear *out,
                              gradcomp_error *err)
{
	const gradcomp_links *links = NULL;
	gradcomp_status st = takes_part ? gradcomp_links_open(group, &links, err) : GRADCOMP_OK;
	if (!st)
		st = level(p, links, seconds, out, err);
	if (takes_part)
		gradcomp_links_close(group, links);
	return st;
}

gradcomp_status probe_levels(probe *p, double seconds, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	double share = p->per_node > 1 && p->nodes > 1 ? seconds / 2 : seconds;
	if (p->per_node > 1)
		st = within(p, p->node, gradcomp_group_nranks(p->node) > 1, share, &p->m->level[0], err);
	else
		probe_say(p, "one rank a node: what a message within a node costs cannot be measured");
	if (!st && p->nodes > 1)
		st = within(p, p->leaders, p->leaders != NULL, share, &p->m->level[1], err);
	else if (!st)
		probe_say(p, "one node: what a message between nodes costs cannot be measured");
	return st;
}
