/* Payloads must stay what they are: ranks of different builds may be in one job, and
 * states are loaded by later versions. Fixed input; the digests of what is gathered,
 * of the average and of the first state are in tests/golden/compressors.txt.
 * The payloads of powersgd, acpsgd and lqsgd come from products that may differ in the
 * last bit between processors, so only their first states are there.
 *
 * After an intended change of format (a new version of the plugin), run with
 * `--write` and say why in the commit. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/ranks.h"
#include "operators/operator_tables.h"
#include "config/spec.h"
#include "tests/support/tap.h"

static const char *const specs[] = {"none",
                                    "cast:type=bf16,sum=wire",
                                    "cast:type=fp16,sum=wire",
                                    "cast:type=fp16,saturate=yes,sum=wire",
                                    "topk:density=0.05",
                                    "powersgd:rank=3",
                                    "acpsgd:rank=3",
                                    "lqsgd:rank=3",
                                    "threshold:t=1.5",
                                    "dgc:density=0.05",
                                    "lags:adaptive=yes",
                                    "block:bits=4",
                                    "terngrad:clip=0"};
static uint64_t dims[4][2] = {{37, 0}, {40, 50}, {1, 0}, {0, 3}};
static uint64_t digest;

static void add(const void *p, uint64_t bytes)
{
	for (uint64_t i = 0; i < bytes; i++)
		digest = (digest ^ ((const unsigned char *)p)[i]) * 1099511628211u; /* FNV-1a */
}

static void seen(ranks *s, gradcomp_payload *in, uint32_t n)
{
	for (int w = 0; n == (uint32_t)s->P && w < s->P; w++)
		add(in[w].data, in[w].bytes);
}

static int digest_of(void *so, const char *text, const gradcomp_operators *op, char *line, size_t size)
{
	const struct gradcomp_compressor_v1 *plugin = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
	spec parsed = {0};
	gradcomp_error err = {0};
	ranks s;
	float *g[3];
	if (!plugin || spec_parse(&plugin->info, text, &parsed, &err))
		return 0;
	if (ranks_open(&s, plugin, op, parsed.values, 3, 4, dims, 42)) {
		spec_clear(&parsed);
		return 0;
	}
	digest = 14695981039346656037u;
	s.tamper = seen;
	if (plugin->save) {
		char state[8192];
		uint64_t bytes = 0;
		plugin->save(s.instance[0], state, sizeof state, &bytes, &err);
		add(state, bytes);
	} else {
		uint64_t d = s.layout[0].numel;
		for (int w = 0; w < 3; w++)
			g[w] = malloc(d * sizeof(float));
		for (int step = 0; step < 3; step++) {
			for (int w = 0; w < 3; w++)
				s.host.operators->random_normal(NULL, g[w], d, 7, (uint64_t)w, (uint64_t)step * d);
			if (ranks_step(&s, g, step & 1))
				digest = 0;
			add(g[0], d * sizeof(float));
		}
		for (int w = 0; w < 3; w++)
			free(g[w]);
	}
	ranks_close(&s);
	spec_clear(&parsed);
	snprintf(line, size, "%s %016llx\n", text, (unsigned long long)digest);
	return 1;
}

static void *open_plugin(const char *text)
{
	char path[4096], name[SPEC_NAME_MAX] = "";
	const char *build = getenv("GRADCOMP_BUILD");
	spec_name(text, name, NULL);
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

int main(int argc, char **argv)
{
	int writing = argc > 1 && !strcmp(argv[1], "--write");
	const char *src = getenv("GRADCOMP_SRC");
	char path[4096], line[256], want[256];
	snprintf(path, sizeof path, "%s/tests/golden/compressors.txt", src ? src : ".");
	FILE *f = fopen(path, writing ? "w" : "r");
	if (!f) {
		perror(path);
		return 1;
	}
	const gradcomp_operators *fast = operators_cpu(), *plain = operators_cpu_variant("portable");
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
		void *so = open_plugin(specs[i]);
		if (!digest_of(so, specs[i], fast, line, sizeof line)) {
			ok(0, "%s runs", specs[i]);
		} else if (writing) {
			fputs(line, f);
		} else {
			is_str(line, fgets(want, sizeof want, f) ? want : "", specs[i]);
			digest_of(so, specs[i], plain, line, sizeof line);
			is_str(line, want, "and with plain code");
		}
		if (so)
			dlclose(so);
	}
	return fclose(f) || (!writing && done_testing());
}
