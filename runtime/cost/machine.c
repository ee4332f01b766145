/* Machines: what is right in one, and machine files. */
#include "cost/machine.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "base/number.h"
#include "config/record_io.h"

/* Beyond these nothing has been built: a message of a minute, a number that takes ten
 * milliseconds. */
#define MESSAGE_MOST 60
#define ITEM_MOST 1e-2

#define BYTE_LEAST 1e-14
#define BYTE_MOST 1e-2

#define AT(member) offsetof(machine_file, member)
static const field machine_rows[] = {
	{"machine", "name", FIELD_NAME, 1, AT(name), 0, 0, 0, NULL},
	{"machine", "nodes", FIELD_COUNT, 1, AT(nodes), 1, MACHINE_NODES_MOST, 0, NULL},
	{"machine", "ranks_per_node", FIELD_COUNT, 1, AT(ranks_per_node), 1, MACHINE_RANKS_MOST, 0, NULL},
	{"machine", "memory", FIELD_NUMBER, 1, AT(memory), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
	{"machine", "reduce", FIELD_NUMBER, 1, AT(reduce), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
	{"machine", "beside_application", FIELD_NUMBER, 0, AT(beside_application), 0.01, 1, 0, "a share of the speed"},
	{"machine", "beside_exchange", FIELD_NUMBER, 0, AT(beside_exchange), 0.01, 1, 0, "a share of the speed"},
	{"machine", "slowed_by_exchange", FIELD_NUMBER, 0, AT(slowed_by_exchange), 0, 99, 0, "a share of the time"},
	{"machine", "slowed_by_compute", FIELD_NUMBER, 0, AT(slowed_by_compute), 0, 99, 0, "a share of the time"},
	{"machine", "call", FIELD_NUMBER, 0, AT(call), 0, MESSAGE_MOST, 0, "seconds"},
	{"machine", "spread", FIELD_NUMBER, 0, AT(spread), 0, 0.99, 0, "a share of the time"},
	{"node", "message", FIELD_NUMBER, 1, AT(level[0].a), 0, MESSAGE_MOST, 0, "seconds"},
	{"node", "byte", FIELD_NUMBER, 1, AT(level[0].b), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
	{"network", "message", FIELD_NUMBER, 1, AT(level[1].a), 0, MESSAGE_MOST, 0, "seconds"},
	{"network", "byte", FIELD_NUMBER, 1, AT(level[1].b), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
};
#undef AT
#define AT(member) offsetof(compressor_curve, member)
static const field curve_rows[] = {
	{"compressor", "spec", FIELD_SPEC, 1, AT(compressor), 0, 0, 0, NULL},
	{"compressor", "encode", FIELD_LINE, 1, AT(encode), 0, MESSAGE_MOST, ITEM_MOST, NULL},
	{"compressor", "decode", FIELD_LINE, 1, AT(decode), 0, MESSAGE_MOST, ITEM_MOST, NULL},
	{"compressor", "gathered", FIELD_NUMBER, 0, AT(gathered), 0, ITEM_MOST, 0, "seconds for a byte"},
	{"compressor", "code", FIELD_LINE, 0, AT(code), 0, MESSAGE_MOST, ITEM_MOST, NULL},
};
#undef AT

/* Keys of a [collective N], in the order of the bits GRADCOMP_CAN_*. */
#define MACHINE_PRIMITIVES 12
static const char *const machine_primitives[MACHINE_PRIMITIVES] = {
	"allreduce", "reduce_scatter",  "allgather",       "alltoall", "broadcast", "barrier",
	"merge",     "coded_allreduce", "coded_allgather", "exchange", "shard",     "coded_reduce_scatter"};

static record_io machine_fields(const machine_file *m)
{
	return (record_io){
		.row = machine_rows, .n = sizeof machine_rows / sizeof *machine_rows, .base = (void *)(uintptr_t)m};
}

static record_io machine_curve_fields(const compressor_curve *c)
{
	return (record_io){
		.row = curve_rows, .n = sizeof curve_rows / sizeof *curve_rows, .base = (void *)(uintptr_t)c};
}

gradcomp_status machine_check(const machine_file *m, gradcomp_error *err)
{
	record_io t = machine_fields(m);
	gradcomp_status st;
	char what[100];
	snprintf(what, sizeof what, "machine '%.63s'", m->name);
	if (m->ncurves > MACHINE_SPECS_MOST || m->ncalls > MACHINE_SPECS_MOST * MACHINE_PRIMITIVES)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "%s has %u compressors and %u calls; there can be %d and %d", what, m->ncurves,
		                 m->ncalls, MACHINE_SPECS_MOST, MACHINE_SPECS_MOST * MACHINE_PRIMITIVES);
	/* Levels that the machine does not have may be zero. */
	t.n -= 4;
	st = record_io_check(&t, what, err);
	for (int level = 0; !st && level < 2; level++) {
		record_io l = {.row = t.row + t.n + 2 * level, .n = 2, .base = t.base};

		if (m->level[level].a || m->level[level].b || (level ? m->nodes : m->ranks_per_node) > 1)
			st = record_io_check(&l, what, err);
	}
	for (uint32_t i = 0; !st && i < m->ncurves; i++) {
		record_io c = machine_curve_fields(&m->curves[i]);

		st = record_io_check(&c, what, err);
	}
	for (uint32_t i = 0; !st && i < m->ncalls; i++) {
		const collective_cost *c = &m->calls[i];
		const field row = {"collective", "call",    FIELD_LINE, 1, offsetof(collective_cost, cost), 0,
		                   MESSAGE_MOST, ITEM_MOST, NULL};
		record_io l = {.row = &row, .n = 1, .base = &m->calls[i]};

		if (!c->collective || !c->primitive || c->primitive & (c->primitive - 1) ||
		    c->primitive >> MACHINE_PRIMITIVES)
			st = error_set(err, GRADCOMP_ERR_INVALID,
			               "%s: call %u is of no collective, or of no one primitive (%#x)", what, i,
			               c->primitive);
		else
			st = record_io_check(&l, what, err);
	}
	return st;
}

static void print_machine(FILE *out, const void *what)
{
	const machine_file *m = what;
	record_io t = machine_fields(m);
	uint32_t number = 0;
	char heading[40];
	record_io_write(out, &t, "machine", "machine");
	for (int level = 0; level < 2; level++) {
		if (!m->level[level].a && !m->level[level].b)
			continue;
		fputc('\n', out);
		record_io_write(out, &t, level ? "network" : "node", level ? "network" : "node");
	}
	for (uint32_t i = 0; i < m->ncurves; i++) {
		record_io c = machine_curve_fields(&m->curves[i]);

		snprintf(heading, sizeof heading, "compressor %u", i + 1);
		fputc('\n', out);
		record_io_write(out, &c, "compressor", heading);
	}
	for (uint32_t i = 0; i < m->ncalls; i++) {
		const collective_cost *c = &m->calls[i];
		uint32_t before = 0;
		char a[NUMBER_TEXT], b[NUMBER_TEXT];

		while (before < i && strcmp(m->calls[before].collective, c->collective))
			before++;
		if (before < i)
			continue;
		fprintf(out, "\n[collective %u]\n", ++number);
		record_io_write_spec(out, "spec", c->collective);
		for (uint32_t k = i; k < m->ncalls; k++) {
			if (strcmp(m->calls[k].collective, c->collective))
				continue;
			number_put_float(a, m->calls[k].cost.a);
			number_put_float(b, m->calls[k].cost.b);
			fprintf(out, "%s = %s %s\n", machine_primitives[__builtin_ctz(m->calls[k].primitive)], a, b);
		}
	}
}

gradcomp_status machine_file_write(const char *path, const machine_file *m, gradcomp_error *err)
{
	gradcomp_status st = machine_check(m, err);
	return st ? st : record_io_publish("machine file", path, print_machine, m, err);
}

void machine_file_free(machine_file *m)
{
	if (!m)
		return;
	for (uint32_t i = 0; i < m->ncurves; i++)
		free(m->curves[i].compressor);
	for (uint32_t i = 0; i < m->ncalls; i++)
		free(m->calls[i].collective);
	free(m->curves);
	free(m->calls);
	free(m);
}

typedef struct collective_name {
	char *spec;
} collective_name;
static const field call_rows[] = {
	{"collective", "spec", FIELD_SPEC, 1, offsetof(collective_name, spec), 0, 0, 0, NULL},
};

typedef struct reading {
	machine_file *m;
	record_io machine, curve, call;
	const char *in; /* "machine", "compressor", ...: the table of the section */
	int line;       /* where it begins */
	uint32_t ncollectives;
	collective_name collective; /* from the section [collective N] */
	uint32_t first_call;        /* the first that the section has */
	int node, network;          /* lines of these sections */
} reading;

/* Calls of a section get its SPEC when it is over: `more` may have come. */
static void end_collective(reading *r, inifile *f)
{
	machine_file *m = r->m;
	record_io_complete(&r->call, f, "collective", r->line);
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
	const machine_file *m = r->m;
	record_io_complete(&r->curve, f, "compressor", r->line);
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
	machine_file *m = r->m;
	compressor_curve *more;
	if (!record_io_number(f, "compressor", number, m->ncurves + 1))
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
	more[m->ncurves] = (compressor_curve){.compressor = NULL};
	r->curve = machine_curve_fields(&more[m->ncurves++]);
	r->in = "compressor";
}

static void begin_collective(reading *r, inifile *f, const char *number)
{
	if (!record_io_number(f, "collective", number, r->ncollectives + 1))
		return;
	if (r->ncollectives == MACHINE_SPECS_MOST) {
		inifile_fail(f, "there are more than %d collectives", MACHINE_SPECS_MOST);
		return;
	}
	r->ncollectives++;
	r->call = (record_io){.row = call_rows, .n = 1, .base = &r->collective};
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
	int words = record_io_words(text, w, 2);
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
		inifile_fail(
			f,
			"unknown section [%.*s]; there are [machine], [node], [network], [compressor N], [collective N]",
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
	machine_file *m = r->m;
	collective_cost *more;
	double line[2];
	for (uint32_t i = r->first_call; i < m->ncalls; i++)
		if (m->calls[i].primitive == 1u << p)
			inifile_fail(f, "%s was given already in this section", machine_primitives[p]);
	if (f->status || !record_io_line(f, machine_primitives[p], value, MESSAGE_MOST, ITEM_MOST, line))
		return;
	more = reallocarray(m->calls, m->ncalls + 1, sizeof *more);
	if (!more) {
		inifile_nomem(f);
		return;
	}
	m->calls = more;
	more[m->ncalls++] = (collective_cost){.primitive = 1u << p, .cost = {line[0], line[1]}};
	r->call.spec = NULL;
}

static void machine_key(inifile *f, const char *section, const char *key, const char *value)
{
	reading *r = f->ctx;
	int collective = !strcmp(r->in, "collective");
	record_io *t = collective ? &r->call : !strcmp(r->in, "compressor") ? &r->curve : &r->machine;
	int p = collective ? primitive_of(key) : -1;
	(void)section; /* inih cuts it; r->in is what the line says */
	if (p >= 0)
		take_call(r, f, p, value);
	else if (!record_io_take(t, f, r->in, key, value))
		record_io_unknown(t, f, r->in, key);
}

static gradcomp_status machine_whole(reading *r, inifile *f)
{
	end_section(r, f);
	if (!f->status)
		record_io_complete(&r->machine, f, "machine", 0);
	if (!f->status && (r->node || r->m->ranks_per_node > 1))
		record_io_complete(&r->machine, f, "node", r->node);
	if (!f->status && (r->network || r->m->nodes > 1))
		record_io_complete(&r->machine, f, "network", r->network);
	return f->status;
}

gradcomp_status machine_file_read(const char *path, machine_file **out, gradcomp_error *err)
{
	machine_file *m = calloc(1, sizeof *m);
	reading r = {.m = m, .machine = machine_fields(m)};
	inifile f = {.err = err, .section = machine_section, .key = machine_key, .ctx = &r};
	gradcomp_status st;
	if (!m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	m->beside_application = m->beside_exchange = 1;
	st = record_io_read(&f, path);
	if (st == GRADCOMP_ERR_NOTFOUND)
		st = error_set(err, st, "there is no machine file %s; gradcomp probe writes one", path);
	if (!st)
		st = machine_whole(&r, &f);
	free(r.collective.spec);
	if (st) {
		machine_file_free(m);
		return st;
	}
	*out = m;
	return GRADCOMP_OK;
}
