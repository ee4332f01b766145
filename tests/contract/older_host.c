/* A host of ABI 2, which has another table of operators: where today's stands in gradcomp_host its memory has ended, at
 * a page that cannot be read. It refuses plugins of today by their number; one that it takes nevertheless, since it
 * lists what it needs, asks and says what is not there: a compressor written with the SDK. */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "conformance/host.h"
#include "config/spec.h"
#include "gradcomp/compressor.h"
#include "operators/operator_tables.h"
#include "tests/support/tap.h"

static const char *const asking[] = {"topk",     "gtopk",  "mstopk", "lags", "dgc",    "randomk", "blocktopk",
                                     "powersgd", "acpsgd", "lqsgd",  "dion", "onebit", "signsgd"};

/* All that ABI 2 knows of a host, up to the end of a page. */
static const gradcomp_host *old_host(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = offsetof(gradcomp_host, operators);
	char *map = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	gradcomp_host now;
	if (map == MAP_FAILED || mprotect(map + page, page, PROT_NONE))
		exit(2);
	host_services(&now, operators_cpu());
	now.struct_size = (uint32_t)bytes;
	now.abi_version = 2;
	return memcpy(map + page - bytes, &now, bytes);
}

static gradcomp_status created(const char *name, const gradcomp_host *host, gradcomp_error *err)
{
	const gradcomp_tensor tensor = {.name = "x", .numel = 48, .ndim = 2, .dims = (const uint64_t[]){8, 6}};
	const gradcomp_layout layout = {
		.struct_size = sizeof layout, .nranks = 2, .ntensors = 1, .tensors = &tensor, .numel = 48};
	const char *build = getenv("GRADCOMP_BUILD");
	const struct gradcomp_compressor_v1 *plugin;
	char path[4096];
	spec parsed = {0};
	void *so, *instance;
	gradcomp_status st;
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	plugin = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	if (!plugin || spec_parse(&plugin->info, name, &parsed, err))
		return GRADCOMP_ERR_NOTFOUND;
	st = plugin->create(host, parsed.values, &layout, &instance, err);
	spec_clear(&parsed);
	return st;
}

int main(void)
{
	const gradcomp_host *old = old_host();
	for (size_t i = 0; i < sizeof asking / sizeof *asking; i++) {
		gradcomp_error err = {0};

		is_int(created(asking[i], old, &err), GRADCOMP_ERR_UNSUPPORTED, "%s is not for a host of ABI 2",
		       asking[i]);
		like(err.text, " needs host.operators, which this gradcomp does not have: it is of ABI 2", asking[i]);
	}
	return done_testing();
}
