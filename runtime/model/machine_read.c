/* Machine files, read. */
#include "machine_parts.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"

typedef struct collective_name {
	char *spec;
} collective_name;
static const field call_rows[] = {
	{"collective", "spec", FIELD_SPEC, 1, offsetof(collective_name, spec), 0, 0, 0, NULL},
};

typedef struct reading {
	gradcomp_machine *m;
	fields machine, curve, call;
	const char *in;       /* "machine", "compressor", ...: the table of the section */
	int line;             /* where it begins */
	uint32_t ncollectives;
	collective_name collective; /* of the section [collective N] */
	uint32_t first_call;        /* of that section */
	int node, network;          /* lines of these sections */
} reading;

/* Calls of a section get its SPEC when it is over: `more` may have come. */
static void end_collective(reading *r, inifile *f)
{
	gradcomp_machine *m = r->m;

	fields_complete(&r->call, f, "collective", r->line);
	for (uint32_t i = r->first_call; !f->status && i < m->ncalls; i++) {
		m->calls[i].collective = strdup(r->collective.spec);
		if (!m->calls[i].collective)
			inifile_nomem(f);
	}
	for (uint32_t i = 0; !f->status && i < r->first_call; i++) {
		if (!strcmp(m->calls[i].collective, r->collective.spec)) {
			f->line = r->line;
			inifile_fail(f, "collective '%s' has a section already", r->collective.spec);
		}
	}
	free(r->collective.spec);
	r->collective.spec = NULL;
}

static void end_curve(reading *r, inifile *f)
{
	const gradcomp_machine *m = r->m;

	fields_complete(&r->curve, f, "compressor", r->line);
	for (uint32_t i = 0; !f->status && i + 1 < m->ncurves; i++) {
		if (!strcmp(m->curves[i].compressor, m->curves[m->ncurves - 1].compressor)) {
			f->line = r->line;
			inifile_fail(f, "compressor '%s' has a section already", m->curves[i].compressor);
		}
	}
}

static void end_section(reading *r, inifile *f)
{
	if (r->in && !strcmp(r->in, "compressor"))
		end_curve(r, f);
	else if (r->in && !strcmp(r->in, "collective"))
		end_collective(r, f);
}

static void begin_curve(reading *r, inifile *f, const char *number)
{
	gradcomp_machine *m = r->m;
	gradcomp_curve *more;

	if (!fields_number(f, "compressor", number, m->ncurves + 1))
		return;
	if (m->ncurves == MACHINE_SPECS_MOST) {
		inifile_fail(f, "there are more than %d compressors", MACHINE_SPECS_MOST);
		return;
	}
	more = reallocarray(m->curves, m->ncurves + 1, sizeof *more);
	if (!more) {
		inifile_nomem(f);
		return;
	}
	m->curves = more;
	more[m->ncurves] = (gradcomp_curve){.compressor = NULL};
	r->curve = machine_curve_fields(&more[m->ncurves++]);
	r->in = "compressor";
}

static void begin_collective(reading *r, inifile *f, const char *number)
{
	if (!fields_number(f, "collective", number, r->ncollectives + 1))
		return;
	if (r->ncollectives == MACHINE_SPECS_MOST) {
		inifile_fail(f, "there are more than %d collectives", MACHINE_SPECS_MOST);
		return;
	}
	r->ncollectives++;
	r->call = (fields){.row = call_rows, .n = 1, .base = &r->collective};
	r->first_call = r->m->ncalls;
	r->in = "collective";
}

static void machine_section(inifile *f, const char *name, size_t n)
{
	reading *r = f->ctx;
	char text[40], *w[2];

	end_section(r, f);
	if (f->status)
		return;
	r->line = f->line;
	r->in = NULL;
	snprintf(text, sizeof text, "%.*s", n < sizeof text ? (int)n : 0, name);
	int words = fields_words(text, w, 2);
	if (words == 1 && !strcmp(w[0], "machine"))
		r->in = "machine";
	else if (words == 1 && !strcmp(w[0], "node"))
		r->in = "node", r->node = f->line;
	else if (words == 1 && !strcmp(w[0], "network"))
		r->in = "network", r->network = f->line;
	else if (words == 2 && !strcmp(w[0], "compressor"))
		begin_curve(r, f, w[1]);
	else if (words == 2 && !strcmp(w[0], "collective"))
		begin_collective(r, f, w[1]);
	if (!f->status && !r->in)
		inifile_fail(f, "unknown section [%.*s]; there are [machine], [node], [network], [compressor N], [collective N]",
		             (int)n, name);
}

static int primitive_of(const char *key)
{
	for (int p = 0; p < MACHINE_PRIMITIVES; p++)
		if (!strcmp(key, machine_primitives[p]))
			return p;
	return -1;
}

static void take_call(reading *r, inifile *f, int p, const char *value)
{
	gradcomp_machine *m = r->m;
	gradcomp_call_cost *more;
	double line[2];

	for (uint32_t i = r->first_call; i < m->ncalls; i++)
		if (m->calls[i].primitive == 1u << p)
			inifile_fail(f, "%s was given already in this section", machine_primitives[p]);
	if (f->status || !fields_line(f, machine_primitives[p], value, MESSAGE_MOST, ITEM_MOST, line))
		return;
	more = reallocarray(m->calls, m->ncalls + 1, sizeof *more);
	if (!more) {
		inifile_nomem(f);
		return;
	}
	m->calls = more;
	more[m->ncalls++] = (gradcomp_call_cost){.primitive = 1u << p, .cost = {line[0], line[1]}};
	r->call.spec = NULL;
}

static void machine_key(inifile *f, const char *section, const char *key, const char *value)
{
	reading *r = f->ctx;
	int collective = !strcmp(r->in, "collective");
	fields *t = collective ? &r->call : !strcmp(r->in, "compressor") ? &r->curve : &r->machine;
	int p = collective ? primitive_of(key) : -1;

	(void)section; /* inih cuts it; r->in is what the line says */
	if (p >= 0)
		take_call(r, f, p, value);
	else if (!fields_take(t, f, r->in, key, value))
		fields_unknown(t, f, r->in, key);
}

static gradcomp_status machine_whole(reading *r, inifile *f)
{
	end_section(r, f);
	if (!f->status)
		fields_complete(&r->machine, f, "machine", 0);
	if (!f->status && (r->node || r->m->ranks_per_node > 1))
		fields_complete(&r->machine, f, "node", r->node);
	if (!f->status && (r->network || r->m->nodes > 1))
		fields_complete(&r->machine, f, "network", r->network);
	return f->status;
}

gradcomp_status gradcomp_machine_read(const char *path, gradcomp_machine **out, gradcomp_error *err)
{
	gradcomp_machine *m = calloc(1, sizeof *m);
	reading r = {.m = m, .machine = machine_fields(m)};
	inifile f = {.err = err, .section = machine_section, .key = machine_key, .ctx = &r};
	gradcomp_status st;

	if (!m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	m->struct_size = sizeof *m;
	m->beside_application = m->beside_exchange = 1;
	st = fields_read(&f, path);
	if (st == GRADCOMP_ERR_NOTFOUND)
		st = error_set(err, st, "there is no machine file %s; gradcomp probe writes one", path);
	if (!st)
		st = machine_whole(&r, &f);
	free(r.collective.spec);
	if (st) {
		gradcomp_machine_free(m);
		return st;
	}
	*out = m;
	return GRADCOMP_OK;
}
