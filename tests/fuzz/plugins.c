/* Bytes from outside against every compressor: what peers send, what merge() and the
 * code functions get, what load() is given. The kit's walls stand behind every buffer;
 * a plugin may refuse or go on, but not crash, hang or write elsewhere.
 *
 * As a test: the frozen payloads of tests/golden, intact and mutated. Built by clang
 * with -fsanitize=fuzzer and FUZZ_ENGINE defined (libfuzzer.t) the same function is fed
 * by libFuzzer. The first bytes choose: plugin, model, how many ranks, and what of all
 * that a step receives is replaced. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conformance/call.h"
#include "conformance/random.h"
#include "gradcomp/plugin.h"

enum { PLUGINS_MAX = 64, HEAD = 4 };

static const struct gradcomp_compressor_v1 *plugins[PLUGINS_MAX];
static gradcomp_spec *specs[PLUGINS_MAX];
static int nplugins;
static uint64_t dims[2][4][2] = {{{5, 0}, {6, 8}, {1, 0}, {0, 3}}, {{33, 0}, {40, 12}, {7, 1}, {300, 0}}};

/* The plugin is fed this. */
static const uint8_t *feed;
static size_t feed_bytes, feed_skip;
static guarded lie;

/* The feed in place of a peer's payload: as long as that, or as it is itself where
 * lengths are not the host's. */
static void tamper(ranks *s, gradcomp_payload *in, uint32_t n)
{
	uint32_t w = n > 1;
	uint64_t bytes = in[w].bytes;
	if (feed_skip && feed_skip--)
		return;
	if (n > 1 && in[0].data == NULL)
		bytes = feed_bytes < in[w].capacity ? feed_bytes : in[w].capacity;
	else if (n == (uint32_t)s->P && n > 1)
		bytes = feed_bytes && feed[0] % 4 == 0 && feed_bytes < in[w].capacity ? feed_bytes : bytes;
	guard_free(&lie);
	lie = guard("what a peer sent", bytes, 8);
	memcpy(lie.data, in[w].data, bytes < in[w].bytes ? bytes : in[w].bytes);
	if (bytes > in[w].bytes)
		memset(lie.data + in[w].bytes, 0, bytes - in[w].bytes);
	memcpy(lie.data, feed, bytes < feed_bytes ? bytes : feed_bytes);
	guard_lock(&lie, 1);
	in[w].data = lie.data;
	in[w].bytes = bytes;
}

static void state(ranks *s)
{
	guarded g = guard("the state that is loaded", feed_bytes, 8);
	memcpy(g.data, feed, feed_bytes);
	guard_lock(&g, 1);
	ranks_call(s, &(call){.which = CALL_LOAD, .from = g.data, .capacity = feed_bytes});
	guard_free(&g);
}

/* Returns 0 when a promise was broken that no wall shows. */
static int one(const uint8_t *data, size_t bytes)
{
	float values[2048], *g[RANKS_MAX];
	ranks s;
	int intact;
	if (bytes < HEAD || !nplugins)
		return 1;
	int which = data[0] % nplugins, P = 2 + data[1] % 2, shape = data[2] % 2;
	feed = data + HEAD;
	feed_bytes = bytes - HEAD;
	feed_skip = data[3] % 4;
	if (ranks_open(&s, plugins[which], gradcomp_host_operators(), specs[which]->values, P, 4, dims[shape], 42))
		return 1;
	for (uint64_t i = 0; i < s.layout[0].numel; i++)
		values[i] = (float)(int)(i * 7919 % 101) - 50;
	gradcomp_error told = {.status = GRADCOMP_OK};
	if (data[3] & 128 && s.plugin->load)
		state(&s);
	else
		s.tamper = tamper;
	for (int step = 0; step < 2; step++) {
		for (int w = 0; w < P; w++) {
			g[w] = malloc(s.layout[0].numel * sizeof(float) + 1);
			memcpy(g[w], values, s.layout[0].numel * sizeof(float));
		}
		s.err = told;
		gradcomp_status st = ranks_step(&s, g, 0);
		for (int w = 0; w < P; w++)
			free(g[w]);
		if (st && (!s.err.text[0] || s.broke)) {
			printf("# %s: status %d, %s\n", plugins[which]->info.name, st, s.err.text);
			s.intact = 0;
		}
		if (st)
			break;
	}
	intact = s.intact;
	guard_free(&lie);
	ranks_close(&s);
	return intact;
}

/* All compressors of $GRADCOMP_PLUGINS or of the build. */
static int open_all(void)
{
	const char *given = getenv("FUZZ_PLUGINS"), *build = getenv("GRADCOMP_BUILD");
	char folder[4000], path[4300];
	struct dirent **names;
	gradcomp_error err;
	int n;
	snprintf(folder, sizeof folder, "%s%s",
	         given   ? given
	         : build ? build
	                 : ".",
	         given ? "" : "/lib/gradcomp/compressors");
	n = scandir(folder, &names, NULL, alphasort);
	for (int i = 0; i < n; i++) {
		snprintf(path, sizeof path, "%s/%s", folder, names[i]->d_name);
		void *so = strstr(names[i]->d_name, ".so") ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
		const struct gradcomp_compressor_v1 *p = so ? dlsym(so, "gradcomp_compressor_v1") : NULL;
		char text[100];
		int sparse = p && p->info.nparams && !strcmp(p->info.params[0].name, "density");
		snprintf(text, sizeof text, "%s%s", p ? p->info.name : "", sparse ? ":density=0.2" : "");
		if (p && nplugins < PLUGINS_MAX && !gradcomp_spec_parse(&p->info, text, &specs[nplugins], &err))
			plugins[nplugins++] = p;
		free(names[i]);
	}
	if (n >= 0)
		free(names);
	return nplugins;
}

#ifdef FUZZ_ENGINE

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
	if (!nplugins && !open_all())
		abort();
	if (bytes < 8192 && !one(data, bytes))
		abort();
	return 0;
}

#else

#include "tests/support/tap.h"

/* The payloads of a golden file, each behind a head; to a folder as files, or run. */
static long seeds(const char *path, int which, const char *out, long *broken)
{
	static char line[1 << 16];
	static uint8_t data[HEAD + (1 << 15)];
	FILE *f = fopen(path, "r");
	long count = 0;
	while (f && fgets(line, sizeof line, f)) {
		size_t n = HEAD;
		int at = 0;
		unsigned byte;
		if (sscanf(line, "payload %*u %*u %*u %*u %n", &at) == EOF || !at)
			continue;
		for (const char *p = line + at; n < sizeof data && sscanf(p, "%2x", &byte) == 1; p += 2)
			data[n++] = (uint8_t)byte;
		for (int turn = 0; turn < 12; turn++, count++) {
			const uint8_t head[HEAD] = {(uint8_t)which, (uint8_t)turn, 0, (uint8_t)(turn / 3)};
			memcpy(data, head, HEAD);
			if (out && turn == 0) {
				char name[4300];
				snprintf(name, sizeof name, "%s/%d-%ld", out, which, count);
				FILE *to = fopen(name, "w");
				if (to) {
					fwrite(data, 1, n, to);
					fclose(to);
				}
			}
			for (int edits = turn; edits > 0 && n > HEAD; edits--)
				data[HEAD + random_check() % (n - HEAD)] =
					(uint8_t)(random_check() % 3 ? random_check() : 255);
			data[3] |= turn == 11 ? 128 : 0;
			*broken += !one(data, n);
		}
	}
	if (f)
		fclose(f);
	return count;
}

/* plugins [FOLDER]: writes the seeds there, too. */
int main(int argc, char **argv)
{
	const char *src = getenv("GRADCOMP_SRC");
	char path[4096];
	random_check_seed(random_fresh_seed());
	if (!open_all())
		ok(0, "there are compressors");
	for (int i = 0; i < nplugins; i++) {
		long broken = 0;
		printf("# %s\n", plugins[i]->info.name); /* in case it crashes */
		fflush(stdout);
		snprintf(path, sizeof path, "%s/tests/golden/%s.txt", src ? src : ".", plugins[i]->info.name);
		long count = seeds(path, i, argc > 1 ? argv[1] : NULL, &broken);
		tap_tried((unsigned long)count, "mutated inputs");
		ok(count && !broken, "%s: %ld times bytes from outside, %ld of them broke something",
		   plugins[i]->info.name, count, broken);
	}
	for (int i = 0; i < nplugins; i++)
		gradcomp_spec_free(specs[i]);
	return done_testing();
}

#endif
