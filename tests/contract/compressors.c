/* The compressors that come with gradcomp, each with a few of its parameters, held to every rule, and some to the
 * bytes and values of their methods. In CI a third of them is run on up to nine ranks and the others on up to four,
 * and of those with parameters a third at a time; check-long does everything. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "tests/contract/method_rules.h"
#include "config/spec.h"

/* Without figures the kit finds its own: the rounding of the type that is summed. A
 * compressor that is not here is run with its defaults. */
static const struct {
	const char *spec;
	double relative, absolute, largest;
	uint64_t (*bytes)(const gradcomp_value *, const ranks *);
	void (*values)(const fixture *);
} list[] = {
	{"none", 1e-6, 0, 0, bytes_none, NULL},
	{"cast", 0x1p-8, 0x1p-133, 0, NULL, NULL},
	{"cast:type=fp16", 0x1p-11, 0x1p-24, 65000, NULL, NULL},
	{"cast:type=fp16,saturate=yes", 0x1p-11, 0x1p-24, 65000, NULL, cast_values},
	{"cast:sum=wire", 0x1p-8, 0x1p-133, 0, bytes_cast, NULL},
	{"cast:saturate=yes,sum=wire", 0x1p-8, 0x1p-133, 0, bytes_cast, cast_values},
	{"cast:type=fp16,sum=wire", 0x1p-11, 0x1p-24, 65000, bytes_cast, NULL},
	{"cast:type=fp16,saturate=yes,sum=wire", 0x1p-11, 0x1p-24, 65000, bytes_cast, cast_values},
	{"topk", 1e-6, 0, 0, bytes_topk, topk_values},
	{"topk:density=0.3", 1e-6, 0, 0, bytes_topk, topk_values},
	{"topk:density=1", 1e-6, 0, 0, bytes_topk, topk_values},
	{"powersgd", 2e-5, 0, 0, bytes_powersgd, powersgd_values},
	{"powersgd:rank=1,min_ratio=0", 2e-5, 0, 0, bytes_powersgd, NULL},
	{"powersgd:rank=128,min_ratio=0", 2e-5, 0, 0, bytes_powersgd, powersgd_values},
	{"powersgd:rank=3,start_step=2", 2e-5, 0, 0, bytes_powersgd, NULL},
	{"powersgd:warm_start=no", 2e-5, 0, 0, bytes_powersgd, powersgd_fresh},
	{"powersgd:rank=2,min_ratio=0,restart=2", 2e-5, 0, 0, NULL, powersgd_values},
	{"acpsgd", 2e-5, 0, 0, NULL, NULL},
	{"acpsgd:rank=1,min_ratio=0", 2e-5, 0, 0, NULL, NULL},
	{"acpsgd:rank=3,start_step=1", 2e-5, 0, 0, NULL, NULL},
	{"acpsgd:rank=128,min_ratio=0", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd:rank=1,min_ratio=0,bits=4,block=32", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd:rank=64,min_ratio=0", 2e-5, 0, 0, NULL, NULL},
	{"lqsgd:rank=2,min_ratio=0,bits=4,levels=log", 2e-5, 0, 0, NULL, NULL},
	{"threshold:t=0.5", 1e-5, 0, 0, bytes_threshold, NULL},
	{"threshold:t=1e-30", 1e-5, 0, 0, NULL, NULL},
	{"block", 0, 0, 0, NULL, NULL},
	{"block:bits=4,block=32", 0, 0, 0, NULL, NULL},
	{"block:bits=4,rotate=yes,rounding=stochastic", 0, 0, 0, NULL, NULL},
	{"block:bits=2,rounding=stochastic,start_step=2", 0, 0, 0, NULL, NULL},
	{"blocktopk", 0, 0, 0, NULL, NULL},
	{"blocktopk:density=0.3,block=7,start_step=1", 0, 0, 0, NULL, NULL},
	{"blocktopk:density=0.2,rows=yes,warmup=0.5,warmup_steps=1", 0, 0, 0, NULL, NULL},
	{"demo", 0, 0, 0, NULL, NULL},
	{"demo:chunk=7,k=5,decay=0.5", 0, 0, 0, NULL, NULL},
	{"demo:chunk=16,sign=yes", 0, 0, 0, NULL, NULL},
	{"demo:form=published", 0, 0, 0, NULL, NULL},
	{"demo:chunk=7,k=5,decay=0.5,sign=yes,form=published", 0, 0, 0, NULL, NULL},
	{"dgc", 0, 0, 0, NULL, NULL},
	{"dgc:density=0.2,nesterov=yes,clip=1,values=block8", 0, 0, 0, NULL, NULL},
	{"dgc:density=0.1,warmup=exp,warmup_steps=1", 0, 0, 0, NULL, NULL},
	{"fp8", 0, 0, 0, NULL, NULL},
	{"fp8:type=e5m2,scales=e8m0,block=32,start_step=1", 0, 0, 0, NULL, NULL},
	{"fp4", 0, 0, 0, NULL, NULL},
	{"fp4:group=32,start_step=1", 0, 0, 0, NULL, NULL},
	{"fp4:type=mx", 0, 0, 0, NULL, NULL},
	{"fp4:group=64,rotate=yes", 0, 0, 0, NULL, NULL},
	{"fp8:rotate=yes", 0, 0, 0, NULL, NULL},
	{"natural", 0, 0, 0, NULL, NULL},
	{"dion", 2e-5, 0, 0, NULL, NULL},
	{"dion:rank=2,min_ratio=0,orthogonal=qr,momentum=0.5,start_step=1", 2e-5, 0, 0, NULL, NULL},
	{"gtopk:density=0.2", 0, 0, 0, NULL, NULL},
	{"gtopk:density=0.1,indices=auto,warmup=0.5/0.3,warmup_steps=1", 0, 0, 0, NULL, NULL},
	{"lossless:codec=lz4", 0, 0, 0, NULL, NULL},
	{"mstopk:density=0.1", 0, 0, 0, NULL, NULL},
	{"mstopk:density=0.1,samplings=3,layerwise=yes,indices=delta,values=bf16", 0, 0, 0, NULL, NULL},
	{"onebit", 0, 0, 0, NULL, NULL},
	{"onebit:column=33,start_step=1", 0, 0, 0, NULL, NULL},
	{"qsgd", 0, 0, 0, NULL, NULL},
	{"qsgd:levels=1,block=32", 0, 0, 0, NULL, NULL},
	{"qsgd:levels=127,error=yes", 0, 0, 0, NULL, NULL},
	{"randomk:density=0.3", 0, 0, 0, NULL, NULL},
	{"signsgd:start_step=2", 0, 0, 0, NULL, NULL},
	{"terngrad", 0, 0, 0, NULL, NULL},
	{"terngrad:clip=0", 0, 0, 0, NULL, NULL},
	{"topk:density=0.1,indices=auto,values=block4,layerwise=yes", 0, 0, 0, NULL, NULL},
	{"topk:density=0.3,indices=bitmap,values=fp16", 0, 0, 0, NULL, NULL},
	{"zfp:rate=16", 0, 0, 0, NULL, NULL},
	{"zfp:rate=3,start_step=1", 0, 0, 0, NULL, NULL},
};

/* Returns 1 when a build has this one: zfp and lossless need libraries. */
static int built(const char *name, char *path, size_t size)
{
	const char *build = getenv("GRADCOMP_BUILD");
	FILE *f;
	snprintf(path, size, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	f = fopen(path, "r");
	if (f)
		fclose(f);
	return f != NULL;
}

static int same_name(const char *a, const char *b)
{
	const size_t n = strcspn(a, ":");
	return n == strcspn(b, ":") && !strncmp(a, b, n);
}

static void one(void *so, fixture t, void (*values)(const fixture *), int ranks_max)
{
	gradcomp_error err = {0};
	gradcomp_spec *parsed = NULL, *plain;
	t.plugin = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	if (!t.plugin || gradcomp_spec_parse(&t.plugin->info, t.spec, &parsed, &err)) {
		ok(0, "%s: cannot be used: %s", t.spec, t.plugin ? err.text : dlerror());
		return;
	}
	const char *parameters = strchr(t.spec, ':');
	if (kit_neutral(&t, parameters ? parameters + 1 : "", &plain, &err))
		ok(0, "%s: neutral values are refused: %s", t.spec, err.text);
	t.values = parsed->values;
	t.op = operators_cpu();
	check_contract(&t, ranks_max);
	if (values)
		values(&t);
	gradcomp_spec_free(plain);
	gradcomp_spec_free(parsed);
}

static void from(const char *path, fixture t, void (*values)(const fixture *), int ranks_max)
{
	void *so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	one(so, t, values, ranks_max);
	if (so)
		dlclose(so);
}

/* Nobody is forgotten. */
static void those_not_listed(void)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char folder[4096], path[4096 + 300], name[SPEC_NAME_MAX];
	struct dirent *e;
	snprintf(folder, sizeof folder, "%s/lib/gradcomp/compressors", build ? build : ".");
	DIR *d = opendir(folder);
	while (d && (e = readdir(d))) {
		int listed = 0;
		size_t n = strlen(e->d_name);
		if (n < 4 || n - 3 >= sizeof name || strcmp(e->d_name + n - 3, ".so"))
			continue;
		snprintf(name, sizeof name, "%.*s", (int)n - 3, e->d_name);
		for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
			listed |= !strncmp(list[i].spec, name, n - 3) &&
			          (!list[i].spec[n - 3] || list[i].spec[n - 3] == ':');
		snprintf(path, sizeof path, "%s/%s", folder, e->d_name);
		if (!listed)
			from(path, (fixture){.spec = name}, NULL, 9);
	}
	if (d)
		closedir(d);
	ok(d != NULL, "%s can be read", folder);
}

int main(int argc, char **argv)
{
	char path[4096], name[SPEC_NAME_MAX];
	test_seed();
	random_check_seed(test_random());
	for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
		if (spec_name(list[i].spec, name, NULL)) {
			ok(0, "'%s' begins with a name", list[i].spec);
			continue;
		}
		if (argc > 1 && strcmp(argv[1], name))
			continue;
		if (!built(name, path, sizeof path)) {
			skip("not part of this build", "%s", list[i].spec);
			continue;
		}
		const int with_parameters = strchr(list[i].spec, ':') != NULL, now = tap_in_part(i, 6);
		/* Some have no defaults, and one more that is run always. */
		if (with_parameters && !now && !(i && !same_name(list[i].spec, list[i - 1].spec)))
			continue;
		from(path,
		     (fixture){.spec = list[i].spec,
		               .relative = list[i].relative,
		               .absolute = list[i].absolute,
		               .largest = list[i].largest,
		               .bytes = list[i].bytes},
		     list[i].values,
		     with_parameters ? 3
		     : now           ? 9
		                     : 4);
	}
	if (argc < 2)
		those_not_listed();
	return done_testing();
}
