/* Measures what calls of collectives cost on these nodes and ranks, as lines of the bytes that the plugin's
 * predict() is asked for. Codes and merges are not measured: what they cost depends on the compressor, and is
 * predicted. */
#include "tools/probe.h"

#include "tools/bench.h"
#include "tools/bench_local.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SIZES = 4, PRIMITIVES = 3 };
static const uint64_t sizes[SIZES] = {1 << 10, 32 << 10, 512 << 10, 4 << 20};
static const double shares[SIZES] = {0.1, 0.1, 0.3, 0.5}; /* shares of the time */
/* Those that a reducer's steps are made of. */
static const uint32_t primitives[PRIMITIVES] = {GRADCOMP_CAN_ALLREDUCE, GRADCOMP_CAN_ALLGATHER, GRADCOMP_CAN_SHARD};

typedef struct calls {
	probe *p;
	const struct gradcomp_collective_v1 *plugin;
	const char *spec; /* in full */
	void *instance;
	char *room;
	uint64_t *counts;
	const gradcomp_value *values;
	double *host; /* seconds beside its messages, for each call that was measured */
	size_t nhost;
} calls;

/* Whole numbers of 0 to begin with: sums stay finite. */
static gradcomp_status call(calls *c, uint32_t primitive, uint64_t bytes, gradcomp_error *err)
{
	uint64_t n = bytes / sizeof(float), P = (uint64_t)c->p->nranks;
	gradcomp_status st;
	switch (primitive) {
	case GRADCOMP_CAN_ALLREDUCE:
		return c->plugin->allreduce(c->instance, c->room, n, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	case GRADCOMP_CAN_ALLGATHER:
		for (uint64_t r = 0; r < P; r++)
			c->counts[r] = bytes;
		return c->plugin->allgather(c->instance, c->room, c->counts, err);
	default:
		st = c->plugin->local_reduce_scatter(c->instance, (float *)(void *)c->room, n, 1.0, err);
		return st ? st : c->plugin->local_allgather(c->instance, (float *)(void *)c->room, n, err);
	}
}

/* Notes what the shortest call took and messages do not explain, where predict() tells of them. */
static void note_host(calls *c, uint32_t primitive, const fit_point *shortest)
{
	const linear *level = c->p->m->level;
	gradcomp_call_load l = {.struct_size = sizeof l};
	double took = shortest->y;
	if (!c->plugin->predict ||
	    c->plugin->predict(c->values, c->p->nranks, c->p->nodes, primitive, (uint64_t)shortest->x, &l, NULL))
		return;
	for (int k = 0; k < 2; k++)
		took -= l.messages[k] * level[k].a + l.bytes[k] * level[k].b;
	c->host[c->nhost++] = took;
}

/* Long ones are left out where they would take longer than there is time, and timed as they
 * are in a row: after a pause a network lets some bytes pass faster. */
static gradcomp_status line(calls *c, uint32_t primitive, double seconds, gradcomp_error *err)
{
	probe *p = c->p;
	fit_point point[SIZES];
	double last = 0;
	int n = 0;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = -1; !st && k < SIZES; k++) {
		uint64_t bytes = sizes[k < 0 ? 0 : k];
		int row = bytes < sizes[1] ? 10 : 1;
		probe_samples s = {.most = k < 0 ? 0 : seconds * shares[k]};
		if (primitive == GRADCOMP_CAN_ALLGATHER)
			bytes = bytes / (uint64_t)p->nranks / 4 * 4 + 4;
		if (k > 2 && last * 8 * 2 > 4 * s.most)
			break;
		while (!st && probe_wants(&s)) {
			st = probe_barrier(p, err);
			if (!st && row == 1)
				st = call(c, primitive, bytes, err);
			double start = clock_now();
			for (int i = 0; !st && i < row; i++)
				st = call(c, primitive, bytes, err);
			double t = (clock_now() - start) / row;
			if (!st)
				st = probe_slowest(p, &t, err);
			probe_add(&s, t);
		}
		last = probe_median(&s);
		if (k >= 0)
			point[n++] = (fit_point){1, (double)bytes, last};
	}
	if (st)
		return st;
	note_host(c, primitive, &point[0]);
	machine_file *m = p->m;
	m->calls[m->ncalls] =
		(collective_cost){.collective = strdup(c->spec), .primitive = primitive, .cost = probe_ends(point, n)};
	if (!m->calls[m->ncalls].collective) {
		probe_nomem(err, c->spec);
		return GRADCOMP_ERR_NOMEM;
	}
	m->ncalls++;
	return GRADCOMP_OK;
}

static gradcomp_status each_primitive(calls *c, double seconds, gradcomp_error *err)
{
	int served = 0;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; k < PRIMITIVES; k++)
		served += !!(c->plugin->serves & primitives[k]);
	for (int k = 0; !st && k < PRIMITIVES; k++)
		if (c->plugin->serves & primitives[k])
			st = line(c, primitives[k], seconds / served, err);
	return st;
}

static gradcomp_status one(calls *c, const bench_spec *s, double seconds, gradcomp_error *err)
{
	probe *p = c->p;
	const gradcomp_plugin_info *info;
	const gradcomp_links *links = NULL;
	gradcomp_plugin_kind kind;
	gradcomp_spec *values = NULL;
	gradcomp_host host;
	gradcomp_error why = {0};
	double bad;
	gradcomp_status st = gradcomp_plugin_open(s->path, &kind, &info, &why);
	c->plugin = (const struct gradcomp_collective_v1 *)(const void *)info;
	c->instance = NULL;
	local_host(&host);
	if (!st && c->plugin->traits & GRADCOMP_TRAIT_CUDA && !(c->plugin->traits & GRADCOMP_TRAIT_ELSE_HOST))
		st = bench_failed(&why, GRADCOMP_ERR_UNSUPPORTED, "it is for device memory");
	if (!st)
		st = gradcomp_spec_parse(info, s->spec, &values, &why);
	if (!st && c->plugin->check)
		st = c->plugin->check(&host, values->values, &why);
	/* All ranks open links and measure, or none. */
	bad = st != GRADCOMP_OK;
	st = probe_slowest(p, &bad, err);
	if (!st && (bad || !values)) {
		gradcomp_spec_free(values);
		return probe_leave_out(p, p->named_collectives, s->spec, why.text, err);
	}
	if (!st)
		st = gradcomp_links_open(p->world, &links, err);
	if (!st)
		st = c->plugin->create(&host, values->values, links, &c->instance, err);
	if (!st) {
		c->spec = values->text;
		c->values = values->values;
		st = each_primitive(c, seconds, err);
	}
	if (c->instance)
		c->plugin->destroy(c->instance);
	gradcomp_links_close(p->world, links);
	gradcomp_spec_free(values);
	return st;
}

gradcomp_status probe_collectives(probe *p, double seconds, gradcomp_error *err)
{
	calls c = {.p = p,
	           .room = calloc(1, sizes[SIZES - 1] + 4 * (size_t)p->nranks),
	           .counts = calloc((size_t)p->nranks, sizeof *c.counts),
	           .host = calloc((size_t)p->ncollectives * PRIMITIVES + 1, sizeof *c.host)};
	gradcomp_status st = GRADCOMP_OK;
	p->m->calls = calloc((size_t)p->ncollectives * PRIMITIVES + 1, sizeof *p->m->calls);
	if (!c.room || !c.counts || !c.host || !p->m->calls) {
		probe_nomem(err, "buffers to measure with");
		st = GRADCOMP_ERR_NOMEM;
	}
	for (int k = 0; !st && p->nranks > 1 && k < p->ncollectives; k++)
		st = one(&c, &p->collectives[k], seconds / p->ncollectives, err);
	if (!st && c.nhost)
		p->m->call = fmax(0, fit_median(c.host, c.nhost));
	free(c.host);
	free(c.counts);
	free(c.room);
	return st;
}
