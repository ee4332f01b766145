/* The CUDA module: loaded on first use, and the reason in words where it is of no
 * use. What its operators compute is tested in tests/cuda. */
#include <stdlib.h>
#include <unistd.h>

#include "operators/operator_tables.h"
#include "tests/support/tap.h"

int main(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096], module[4200];
	gradcomp_error err = {0};
	const gradcomp_operators *table;
	setenv("GRADCOMP_PLUGIN_PATH", "/nonexistent", 1);
	table = operators_cuda(&err);
	if (!table)
		like(err.text, "operators/cuda.so", "without a module the text names it");
	else
		ok(table->device == GRADCOMP_CUDA, "an installed module gives a table of the device");

	snprintf(path, sizeof path, "%s/lib/gradcomp", build ? build : ".");
	snprintf(module, sizeof module, "%s/operators/cuda.so", path);
	if (access(module, R_OK)) {
		skip("built without nvcc", "the module of this build");
		return done_testing();
	}
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	table = operators_cuda(&err);
	if (table) {
		ok(table->device == GRADCOMP_CUDA && table->struct_size == sizeof *table, "a table of the device");
		ok(operators_cuda(NULL) == table, "the same every time");
	} else {
		is_int(err.status, GRADCOMP_ERR_UNSUPPORTED, "it loads without a device, and says no: %s", err.text);
		like(err.text, "CUDA", "in words");
		ok(!operators_cuda(NULL), "the reason may be left out");
	}
	return done_testing();
}
