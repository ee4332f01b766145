/* gradcomp/operators.def: an entry makes a function in every table, and there are no more than are looked after. */
#include <stdio.h>
#include <string.h>

#include "operators/operator_tables.h"
#include "tests/support/tap.h"

enum { MOST = 81 };

#define GRADCOMP_OPERATOR(result, name, promise, host, parameters, arguments) \
	{#name, offsetof(gradcomp_operators, name), #promise, #parameters},
#define GRADCOMP_SCRATCH(name, parameters, arguments) \
	{#name, offsetof(gradcomp_operators, name), "SCRATCH", #parameters},
#define GRADCOMP_SIZE(name, parameters, arguments) {#name, offsetof(gradcomp_operators, name), "SIZE", #parameters},
static const struct {
	const char *name;
	size_t at;
	const char *promise, *parameters;
} entries[] = {
#include "gradcomp/operators.def"
};
enum { ENTRIES = sizeof entries / sizeof *entries };

static void is_full(const char *name, const gradcomp_operators *op)
{
	int missing = 0;
	for (int i = 0; i < ENTRIES; i++) {
		void *function;

		memcpy(&function, (const char *)op + entries[i].at, sizeof function);
		if (!function && ++missing)
			printf("# %s has no %s\n", name, entries[i].name);
	}
	ok(!missing && op->failed && op->struct_size == sizeof *op, "%s: all %d are there", name, ENTRIES);
}

int main(void)
{
	static const char *const names[] = {"portable", "avx2", "avx512"};
	int wrong = 0;
	ok((int)ENTRIES <= (int)MOST, "%d entries, at most %d", ENTRIES, MOST);
	is_int(sizeof(gradcomp_operators), offsetof(gradcomp_operators, failed) + (1 + ENTRIES) * sizeof(void *),
	       "the table has these and failed()");
	for (int i = 0; i < ENTRIES; i++) {
		const char *promise = entries[i].promise;
		int size = !strcmp(promise, "SCRATCH") || !strcmp(promise, "SIZE");

		/* An operator that works has a queue, and one that measures has none. */
		if (size == !strncmp(entries[i].parameters, "(void *queue", 12) ||
		    (!size && strcmp(promise, "LOCAL") && strcmp(promise, "REPLICATED"))) {
			printf("# %s: %s %s\n", entries[i].name, promise, entries[i].parameters);
			wrong++;
		}
	}
	ok(!wrong, "each entry says LOCAL or REPLICATED and has a queue, or measures");
	is_full("the host's", operators_cpu());
	for (int i = 0; i < 3; i++)
		if (operators_cpu_variant(names[i]))
			is_full(names[i], operators_cpu_variant(names[i]));
	return done_testing();
}
