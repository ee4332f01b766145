/* A host of the first release: its table of operators ends where that one ended, at a page that cannot be read.
 * Compressors written with the SDK ask, and say what is not there; others that use the first operators alone run. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/first_sizes.h"
#include "config/spec.h"
#include "operators/operator_tables.h"
#include "tests/support/tap.h"
#include "conformance/ranks.h"

static const char *const asking[] = {"topk",     "gtopk",  "mstopk", "lags", "dgc",    "randomk", "blocktopk",
                                     "powersgd", "acpsgd", "lqsgd",  "dion", "onebit", "signsgd"};
static const char *const first_alone[] = {"none"};
static uint64_t dims[2][2] = {{8, 6}, {7, 0}};

/* The first operators, up to the end of a page. */
static const gradcomp_operators *old_table(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE);
	char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED || mprotect(map + page, page, PROT_NONE))
		exit(2);
	char *at = map + page - FIRST_SIZE(gradcomp_operators);
	uint32_t size = FIRST_SIZE(gradcomp_operators);
	memcpy(at, operators_cpu(), size);
	memcpy(at, &size, sizeof size);
	return (const gradcomp_operators *)(void *)at;
}

static gradcomp_status opened(const char *name, const gradcomp_operators *op, int step, gradcomp_error *err)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096];
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	const struct gradcomp_compressor_v1 *plugin = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	spec parsed = {0};
	float *g[RANKS_MAX];
	ranks s;
	if (!plugin || spec_parse(&plugin->info, name, &parsed, err))
		return GRADCOMP_ERR_NOTFOUND;
	gradcomp_status st = ranks_open(&s, plugin, op, parsed.values, 2, 2, dims, 42);
	*err = s.err;
	if (!st && step) {
		for (int w = 0; w < 2; w++)
			g[w] = calloc(s.layout[0].numel, sizeof *g[w]);
		st = ranks_step(&s, g, 0);
		*err = s.err;
		for (int w = 0; w < 2; w++)
			free(g[w]);
	}
	if (!st)
		ranks_close(&s);
	spec_clear(&parsed);
	return st;
}

int main(void)
{
	const gradcomp_operators *old = old_table();
	gradcomp_error err;
	for (size_t i = 0; i < sizeof asking / sizeof *asking; i++) {
		err = (gradcomp_error){0};
		is_int(opened(asking[i], old, 0, &err), GRADCOMP_ERR_UNSUPPORTED,
		       "%s is not for a host of the first release", asking[i]);
		like(err.text, " needs operators.", asking[i]);
	}
	for (size_t i = 0; i < sizeof first_alone / sizeof *first_alone; i++) {
		err = (gradcomp_error){0};
		is_int(opened(first_alone[i], old, 1, &err), 0, "%s runs there: %s", first_alone[i], err.text);
	}
	return done_testing();
}
