/* The compressors that come with gradcomp, held to the contract, and to the bytes
 * and values of their methods. */
#include <dlfcn.h>

#include "contract/methods.h"
#include "spec.h"

static const struct {
	const char *spec;
	double relative, absolute, largest;
	uint64_t (*bytes)(const gradcomp_value *, const ranks *);
	void (*values)(const subject *);
} list[] = {
	{"none", 1e-6, 0, 0, bytes_none, NULL},
	{"cast", 0x1p-8, 0x1p-133, 0, bytes_cast, NULL},
	{"cast:saturate=yes", 0x1p-8, 0x1p-133, 0, bytes_cast, cast_values},
	{"cast:type=fp16", 0x1p-11, 0x1p-24, 65000, bytes_cast, NULL},
	{"cast:type=fp16,saturate=yes", 0x1p-11, 0x1p-24, 65000, bytes_cast, cast_values},
	{"topk", 1e-6, 0, 0, bytes_topk, topk_values},
	{"topk:density=0.3", 1e-6, 0, 0, bytes_topk, topk_values},
	{"topk:density=1", 1e-6, 0, 0, bytes_topk, topk_values},
	{"powersgd", 2e-5, 0, 0, bytes_powersgd, powersgd_values},
	{"powersgd:rank=1,min_ratio=0", 2e-5, 0, 0, bytes_powersgd, NULL},
	{"powersgd:rank=64,min_ratio=0", 2e-5, 0, 0, bytes_powersgd, powersgd_values},
	{"powersgd:rank=3,start_step=2", 2e-5, 0, 0, bytes_powersgd, NULL},
	{"powersgd:warm_start=no", 2e-5, 0, 0, bytes_powersgd, powersgd_fresh},
	{"powersgd:rank=2,min_ratio=0,restart=2", 2e-5, 0, 0, NULL, powersgd_values},
	{"acpsgd", 2e-5, 0, 0, NULL, NULL},
	{"acpsgd:rank=1,min_ratio=0", 2e-5, 0, 0, NULL, NULL},
	{"acpsgd:rank=3,start_step=1", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd:rank=1,min_ratio=0,bits=4,block=32", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd:rank=64,min_ratio=0", 2e-5, 0, 0, NULL, NULL},
	{"threshold:t=0.5", 1e-5, 0, 0, bytes_threshold, NULL},
	{"threshold:t=1e-30", 1e-5, 0, 0, NULL, NULL},
};

static void one(void *so, subject t, void (*values)(const subject *))
{
	gradcomp_error err = {0};
	spec parsed = {0};
	t.plugin = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	ok(t.plugin != NULL, "%s: is a compressor", t.spec ? t.spec : "this plugin");
	if (!t.plugin) {
		printf("# %s\n", dlerror());
		return;
	}
	if (!t.spec)
		t.spec = t.plugin->info.name;
	gradcomp_status st = spec_parse(&t.plugin->info, t.spec, &parsed, &err);
	is_int(st, GRADCOMP_OK, "%s: the SPEC is right%s%s", t.spec, st ? ": " : "", st ? err.text : "");
	if (st)
		return;
	t.values = parsed.values;
	t.op = operators_cpu();
	check_contract(&t);
	if (values)
		values(&t);
	spec_clear(&parsed);
}

static void from(const char *path, subject t, void (*values)(const subject *))
{
	void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	one(so, t, values);
	if (so)
		dlclose(so);
}

/* Without arguments: the compressors of this build. With the path of another one:
 * that, with its defaults. */
int main(int argc, char **argv)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096], name[SPEC_NAME_MAX];
	test_seed();
	check_seed(test_random());
	if (argc > 1) {
		from(argv[1], (subject){.relative = 1e-5}, NULL);
		return done_testing();
	}
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
		if (spec_name(list[i].spec, name, NULL)) {
			ok(0, "'%s' begins with a name", list[i].spec);
			continue;
		}
		snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
		from(path,
		     (subject){.spec = list[i].spec,
		               .relative = list[i].relative,
		               .absolute = list[i].absolute,
		               .largest = list[i].largest,
		               .bytes = list[i].bytes},
		     list[i].values);
	}
	return done_testing();
}
