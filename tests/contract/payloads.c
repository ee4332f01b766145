/* Payloads that were sent once are understood for ever. tests/golden/NAME.txt has,
 * for a few SPECs of a compressor, every payload of three ranks in two steps, and the
 * average they decoded to. Here the same gradients are encoded, the frozen payloads
 * put in place of what comes out, and the average compared bit by bit: decoding is the
 * same on every processor, even where encoding is not.
 *
 *     payloads --write     adds the files that are missing; it changes none
 *
 * A file is text: `spec SPEC`, then `payload STEP BUCKET ROUND RANK HEX` in the order
 * they are made, and `average STEP HEX` after each step. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "plugin/operators_v1.h"
#include "conformance/ranks.h"
#include "gradcomp/plugin.h"
#include "tests/support/tap.h"

enum { P = 3, STEPS = 2, LINE = 1 << 16 };

static uint64_t dims[4][2] = {{5, 0}, {6, 8}, {1, 0}, {0, 3}};

static const char *const specs[] = {
	"acpsgd:rank=2,min_ratio=0",
	"block",
	"block:bits=4,block=32",
	"block:bits=2,block=32,rounding=stochastic",
	"blocktopk:density=0.2,block=8",
	"blocktopk:density=0.3,rows=yes",
	"cast:sum=wire",
	"cast:type=fp16,saturate=yes,sum=wire",
	"demo:chunk=4,k=3",
	"demo:chunk=4,k=3,form=published",
	"dgc:density=0.2",
	"dion:rank=2,min_ratio=0",
	"fp4",
	"fp4:group=32",
	"fp4:type=mx",
	"fp8",
	"fp8:type=e5m2,scales=e8m0,block=32",
	"gtopk:density=0.2",
	"lossless:codec=lz4",
	"lossless:codec=zstd",
	"lqsgd:rank=2,min_ratio=0",
	"lqsgd:rank=2,min_ratio=0,bits=4",
	"mstopk:density=0.2",
	"natural",
	"none",
	"onebit",
	"powersgd:rank=2,min_ratio=0",
	"qsgd:levels=1,block=32",
	"qsgd",
	"qsgd:levels=127",
	"randomk:density=0.2",
	"signsgd",
	"terngrad",
	"threshold:t=0.5",
	"topk:density=0.2",
	"topk:density=0.2,indices=delta,values=bf16",
	"topk:density=0.2,indices=bitmap,values=block4",
	"zfp",
};

static FILE *file;
static int writing, wrong;
static char line[LINE];

static void put(const char *label, const void *data, uint64_t bytes)
{
	fputs(label, file);
	for (uint64_t i = 0; i < bytes; i++)
		fprintf(file, "%02x", ((const unsigned char *)data)[i]);
	fputc('\n', file);
}

/* The bytes of the next line, which must begin with `label`. Returns how many, or -1. */
static long take(const char *label, unsigned char *out, uint64_t capacity)
{
	size_t n = strlen(label);
	long bytes = 0;
	unsigned byte;
	if (wrong || !fgets(line, sizeof line, file) || strncmp(line, label, n)) {
		if (!wrong++)
			printf("# '%s' should come next, the file has '%.40s'\n", label, line);
		return -1;
	}
	for (const char *p = line + n; sscanf(p, "%2x", &byte) == 1; p += 2) {
		if ((uint64_t)bytes == capacity) {
			wrong++;
			printf("# %s has more than the %llu bytes there is room for\n", label,
			       (unsigned long long)capacity);
			return -1;
		}
		out[bytes++] = (unsigned char)byte;
	}
	return bytes;
}

static void made(ranks *s, const gradcomp_bucket *bucket, uint32_t round, int rank, gradcomp_payload *payload)
{
	char label[80];
	long bytes;
	snprintf(label, sizeof label, "payload %llu %u %u %d ", (unsigned long long)s->step, bucket->index, round,
	         rank);
	if (writing) {
		put(label, payload->data, payload->bytes);
		return;
	}
	bytes = take(label, payload->data, payload->capacity);
	if (bytes >= 0)
		payload->bytes = (uint64_t)bytes;
}

/* Gradients from the counter-based generator, which gives the same everywhere. */
static void one(const char *text, const struct gradcomp_compressor_v1 *plugin)
{
	static float frozen[LINE / 8];
	gradcomp_spec *spec = NULL;
	gradcomp_error err = {0};
	float *g[P];
	ranks s;
	gradcomp_status st = gradcomp_spec_parse(&plugin->info, text, &spec, &err);
	wrong = 0;
	if (st || (st = ranks_open(&s, plugin, gradcomp_host_operators(), spec->values, P, 4, dims, 42))) {
		ok(0, "%s: cannot be made: %s", text, spec ? s.err.text : err.text);
		gradcomp_spec_free(spec);
		return;
	}
	uint64_t d = s.layout[0].numel;
	ranks_plan(&s, 50);
	s.made = made;
	for (int w = 0; w < P; w++)
		g[w] = malloc(d * sizeof(float));
	for (int step = 0; !st && !wrong && step < STEPS; step++) {
		char label[40];
		for (int w = 0; w < P; w++)
			operators_v1()->random_uniform(NULL, g[w], d, 7, (uint64_t)w, (uint64_t)step * d);
		for (uint64_t i = 0; i < P * d; i++)
			g[i % P][i / P] = g[i % P][i / P] * 4 - 2;
		st = ranks_step(&s, g, 0);
		snprintf(label, sizeof label, "average %d ", step);
		if (writing)
			put(label, g[0], d * sizeof(float));
		else if (!st && take(label, (unsigned char *)frozen, sizeof frozen) >= 0)
			wrong += !!memcmp(frozen, g[0], d * sizeof(float));
	}
	ok(!st && !wrong, "%s: %s", text,
	   st        ? s.err.text
	   : writing ? "frozen"
	             : "frozen payloads decode to the average of their time");
	for (int w = 0; w < P; w++)
		free(g[w]);
	ranks_close(&s);
	gradcomp_spec_free(spec);
}

static const struct gradcomp_compressor_v1 *load(const char *name, void **so)
{
	const char *build = getenv("GRADCOMP_BUILD");
	char path[4096];
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors/%s.so", build ? build : ".", name);
	*so = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	return *so ? dlsym(*so, "gradcomp_compressor_v1") : NULL;
}

static void write_all(const char *name, const struct gradcomp_compressor_v1 *plugin)
{
	size_t n = strlen(name);
	int some = 0;
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
		if (strncmp(specs[i], name, n) || (specs[i][n] && specs[i][n] != ':'))
			continue;
		fprintf(file, "spec %s\n", specs[i]);
		one(specs[i], plugin);
		some++;
	}
	if (some)
		return;
	fprintf(file, "spec %s\n", name);
	one(name, plugin);
}

static void read_all(const struct gradcomp_compressor_v1 *plugin)
{
	char text[300];
	while (fgets(line, sizeof line, file))
		if (!strncmp(line, "spec ", 5)) {
			line[strcspn(line, "\n")] = '\0';
			snprintf(text, sizeof text, "%.299s", line + 5);
			one(text, plugin);
		}
}

int main(int argc, char **argv)
{
	const char *src = getenv("GRADCOMP_SRC"), *build = getenv("GRADCOMP_BUILD");
	char path[4096];
	struct dirent *e;
	writing = argc > 1 && !strcmp(argv[1], "--write");
	snprintf(path, sizeof path, "%s/lib/gradcomp/compressors", build ? build : ".");
	DIR *d = opendir(path);
	while (d && (e = readdir(d))) {
		size_t n = strlen(e->d_name);
		char name[100];
		void *so;
		if (n < 4 || n > sizeof name || strcmp(e->d_name + n - 3, ".so"))
			continue;
		snprintf(name, sizeof name, "%.*s", (int)n - 3, e->d_name);
		snprintf(path, sizeof path, "%s/tests/golden/%s.txt", src ? src : ".", name);
		const struct gradcomp_compressor_v1 *plugin = load(name, &so);
		file = fopen(path, writing ? "wx" : "r"); /* payloads that are frozen stay so */
		if (file && plugin)
			writing ? write_all(name, plugin) : read_all(plugin);
		else if (!writing)
			ok(0, "%s: has frozen payloads (%s)", name, plugin ? "payloads --write makes them" : dlerror());
		if (file)
			fclose(file);
		if (so)
			dlclose(so);
	}
	if (d)
		closedir(d);
	ok(d != NULL, "the compressors of the build");
	return done_testing();
}
