/* Shows what was measured, as a table. */
#include "tools/probe.h"

#include <stdio.h>

static double rate(double seconds_a_byte)
{
	return seconds_a_byte > 0 ? 1e-9 / seconds_a_byte : 0;
}

static void show_level(const char *name, const linear *l)
{
	if (l->b > 0)
		printf("%-22s %9.1f us a message, %8.3f GB/s\n", name, 1e6 * l->a, rate(l->b));
}

void probe_show(const machine_file *m)
{
	printf("%s: %u nodes of %u ranks\n", m->name, m->nodes, m->ranks_per_node);
	show_level("within a node", &m->level[0]);
	show_level("between nodes", &m->level[1]);
	if (m->ncalls)
		printf("%-22s %9.1f us beside its messages\n", "a call", 1e6 * m->call);
	printf("%-22s %8.3f GB/s, copying %.3f GB/s\n", "adding", rate(m->reduce), rate(m->memory));
	printf("%-22s %8.0f %% of its speed beside the program, %.0f %% beside an exchange\n", "compressing",
	       100 * m->beside_application, 100 * m->beside_exchange);
	printf("%-22s %8.0f %% longer beside compressing, %.0f %% beside an exchange\n", "the program's passes",
	       100 * m->slowed_by_compute, 100 * m->slowed_by_exchange);
	printf("\n%-44s %22s %22s\n", "ms, and ms a million numbers", "encode", "decode, or code");
	for (uint32_t k = 0; k < m->ncurves; k++) {
		const compressor_curve *c = &m->curves[k];
		const linear *after = c->code.b > 0 ? &c->code : &c->decode;
		printf("%-44.44s %10.3f + %9.3f %10.3f + %9.3f\n", c->compressor, 1e3 * c->encode.a, 1e9 * c->encode.b,
		       1e3 * after->a, 1e9 * after->b);
	}
	if (m->ncalls)
		printf("\n%-44s %12s %12s\n", "calls", "microseconds", "GB/s");
	for (uint32_t k = 0; k < m->ncalls; k++) {
		static const char *const names[] = {"all-reduce", "reduce-scatter", "all-gather", "all-to-all",
		                                    "broadcast"};
		const collective_cost *c = &m->calls[k];
		int bit = __builtin_ctz(c->primitive);
		printf("%-28.28s %-15s %12.1f %12.3f\n", c->collective, bit < 5 ? names[bit] : "levels",
		       1e6 * c->cost.a, rate(c->cost.b));
	}
}
