/* Machines: what is right in one, and machine files as they are written. */
#include "machine_parts.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "number.h"

#define BYTE_LEAST 1e-14
#define BYTE_MOST 1e-2

#define AT(member) offsetof(gradcomp_machine, member)
static const field machine_rows[] = {
	{"machine", "name", FIELD_NAME, 1, AT(name), 0, 0, 0, NULL},
	{"machine", "nodes", FIELD_COUNT, 1, AT(nodes), 1, MACHINE_NODES_MOST, 0, NULL},
	{"machine", "ranks_per_node", FIELD_COUNT, 1, AT(ranks_per_node), 1, MACHINE_RANKS_MOST, 0, NULL},
	{"machine", "memory", FIELD_NUMBER, 1, AT(memory), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
	{"machine", "reduce", FIELD_NUMBER, 1, AT(reduce), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
	{"machine", "beside_application", FIELD_NUMBER, 0, AT(beside_application), 0.01, 1, 0, "a share of the speed"},
	{"machine", "beside_exchange", FIELD_NUMBER, 0, AT(beside_exchange), 0.01, 1, 0, "a share of the speed"},
	{"node", "message", FIELD_NUMBER, 1, AT(level[0].a), 0, MESSAGE_MOST, 0, "seconds"},
	{"node", "byte", FIELD_NUMBER, 1, AT(level[0].b), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
	{"network", "message", FIELD_NUMBER, 1, AT(level[1].a), 0, MESSAGE_MOST, 0, "seconds"},
	{"network", "byte", FIELD_NUMBER, 1, AT(level[1].b), BYTE_LEAST, BYTE_MOST, 0, "seconds for a byte"},
};
#undef AT
#define AT(member) offsetof(gradcomp_curve, member)
static const field curve_rows[] = {
	{"compressor", "spec", FIELD_SPEC, 1, AT(compressor), 0, 0, 0, NULL},
	{"compressor", "encode", FIELD_LINE, 1, AT(encode), 0, MESSAGE_MOST, ITEM_MOST, NULL},
	{"compressor", "decode", FIELD_LINE, 1, AT(decode), 0, MESSAGE_MOST, ITEM_MOST, NULL},
	{"compressor", "gathered", FIELD_NUMBER, 0, AT(gathered), 0, ITEM_MOST, 0, "seconds for a byte"},
	{"compressor", "code", FIELD_LINE, 0, AT(code), 0, MESSAGE_MOST, ITEM_MOST, NULL},
};
#undef AT

const char *const machine_primitives[MACHINE_PRIMITIVES] = {
	"allreduce", "reduce_scatter", "allgather", "alltoall", "broadcast", "barrier", "merge", "coded_allreduce",
	"coded_allgather", "exchange", "shard", "coded_reduce_scatter"};

fields machine_fields(const gradcomp_machine *m)
{
	return (fields){.row = machine_rows, .n = sizeof machine_rows / sizeof *machine_rows,
	                .base = (void *)(uintptr_t)m};
}

fields machine_curve_fields(const gradcomp_curve *c)
{
	return (fields){.row = curve_rows, .n = sizeof curve_rows / sizeof *curve_rows, .base = (void *)(uintptr_t)c};
}

gradcomp_status machine_check(const gradcomp_machine *m, gradcomp_error *err)
{
	fields t = machine_fields(m);
	gradcomp_status st;
	char what[100];

	if (m->struct_size < sizeof *m)
		return error_set(err, GRADCOMP_ERR_ABI, "a gradcomp_machine of %u bytes; %zu are right", m->struct_size,
		                 sizeof *m);
	snprintf(what, sizeof what, "machine '%.63s'", m->name);
	if (m->ncurves > MACHINE_SPECS_MOST || m->ncalls > MACHINE_SPECS_MOST * MACHINE_PRIMITIVES)
		return error_set(err, GRADCOMP_ERR_INVALID, "%s has %u compressors and %u calls; there can be %d and %d", what,
		                 m->ncurves, m->ncalls, MACHINE_SPECS_MOST, MACHINE_SPECS_MOST * MACHINE_PRIMITIVES);
	/* Levels that the machine does not have may be zero. */
	t.n -= 4;
	st = fields_check(&t, what, err);
	for (int level = 0; !st && level < 2; level++) {
		fields l = {.row = t.row + t.n + 2 * level, .n = 2, .base = t.base};

		if (m->level[level].a || m->level[level].b || (level ? m->nodes : m->ranks_per_node) > 1)
			st = fields_check(&l, what, err);
	}
	for (uint32_t i = 0; !st && i < m->ncurves; i++) {
		fields c = machine_curve_fields(&m->curves[i]);

		st = fields_check(&c, what, err);
	}
	for (uint32_t i = 0; !st && i < m->ncalls; i++) {
		const gradcomp_call_cost *c = &m->calls[i];
		const field row = {"collective", "call", FIELD_LINE, 1, offsetof(gradcomp_call_cost, cost), 0, MESSAGE_MOST,
		                   ITEM_MOST, NULL};
		fields l = {.row = &row, .n = 1, .base = &m->calls[i]};

		if (!c->collective || !c->primitive || c->primitive & (c->primitive - 1) || c->primitive >> MACHINE_PRIMITIVES)
			st = error_set(err, GRADCOMP_ERR_INVALID, "%s: call %u is of no collective, or of no one primitive (%#x)",
			               what, i, c->primitive);
		else
			st = fields_check(&l, what, err);
	}
	return st;
}

static void print_machine(FILE *out, const void *what)
{
	const gradcomp_machine *m = what;
	fields t = machine_fields(m);
	uint32_t number = 0;
	char heading[40];

	fields_write(out, &t, "machine", "machine");
	for (int level = 0; level < 2; level++) {
		if (!m->level[level].a && !m->level[level].b)
			continue;
		fputc('\n', out);
		fields_write(out, &t, level ? "network" : "node", level ? "network" : "node");
	}
	for (uint32_t i = 0; i < m->ncurves; i++) {
		fields c = machine_curve_fields(&m->curves[i]);

		snprintf(heading, sizeof heading, "compressor %u", i + 1);
		fputc('\n', out);
		fields_write(out, &c, "compressor", heading);
	}
	for (uint32_t i = 0; i < m->ncalls; i++) {
		const gradcomp_call_cost *c = &m->calls[i];
		uint32_t before = 0;
		char a[NUMBER_TEXT], b[NUMBER_TEXT];

		while (before < i && strcmp(m->calls[before].collective, c->collective))
			before++;
		if (before < i)
			continue;
		fprintf(out, "\n[collective %u]\n", ++number);
		fields_write_spec(out, "spec", c->collective);
		for (uint32_t k = i; k < m->ncalls; k++) {
			if (strcmp(m->calls[k].collective, c->collective))
				continue;
			number_put_float(a, m->calls[k].cost.a);
			number_put_float(b, m->calls[k].cost.b);
			fprintf(out, "%s = %s %s\n", machine_primitives[__builtin_ctz(m->calls[k].primitive)], a, b);
		}
	}
}

gradcomp_status gradcomp_machine_write(const char *path, const gradcomp_machine *m, gradcomp_error *err)
{
	gradcomp_status st = machine_check(m, err);

	return st ? st : fields_publish(path, print_machine, m, err);
}

void gradcomp_machine_free(gradcomp_machine *m)
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
