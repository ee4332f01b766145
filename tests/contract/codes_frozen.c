/* Codes that earlier versions made decode to what they were: tests/golden/codes.txt.
 *
 * After an intended change of a format, which old builds then cannot read: --write,
 * and say why in the commit. */
#include <stdio.h>

#include "tests/support/codec_fixture.h"

enum { FROZEN = 300 };

static uint64_t digest_of(const float *x)
{
	uint64_t digest = 14695981039346656037u; /* FNV-1a */
	for (size_t i = 0; i < FROZEN * sizeof *x; i++)
		digest = (digest ^ ((const unsigned char *)x)[i]) * 1099511628211u;
	return digest;
}

/* A line: the SPEC, the digest of what the payload is, and the payload. */
static void frozen(const char *spec, uint64_t digest, const char *hex)
{
	codec c;
	float y[FROZEN] = {0};
	uint64_t bytes = strlen(hex) / 2;
	unsigned char *payload = malloc(bytes + 1);
	for (uint64_t i = 0; payload && i < bytes; i++)
		sscanf(hex + 2 * i, "%2hhx", &payload[i]);
	if (codec_load(&c, spec) == GRADCOMP_ERR_NOTFOUND || c.err.status == GRADCOMP_ERR_UNSUPPORTED) {
		skip("not in this build", "%s", spec);
	} else {
		codec_close(&c);
		ok(payload && codec_open(&c, spec, 0, 1, FROZEN) && !codec_decode(&c, payload, bytes, y, FROZEN, 0) &&
		           digest_of(y) == digest,
		   "%s: %llu bytes of an earlier version are what they were", spec, (unsigned long long)bytes);
	}
	codec_close(&c);
	free(payload);
}

static void frozen_all(const char *path)
{
	static char line[4 * FROZEN * 2 + 200];
	char spec[100];
	unsigned long long digest;
	int lines = 0, hex = 0;
	FILE *f = fopen(path, "r");
	while (f && fgets(line, sizeof line, f))
		if (sscanf(line, "%99s %llx %n", spec, &digest, &hex) == 2 && line[hex]) {
			line[strcspn(line, "\n")] = 0;
			frozen(spec, digest, line + hex);
			lines++;
		}
	ok(lines == 8, "%d payloads of earlier versions in %s", lines, path);
	if (f)
		fclose(f);
}

static int freeze(const char *path)
{
	static const char *const specs[] = {"block",      "block:bits=4",        "block:bits=2,block=32",
	                                    "zfp:rate=8", "lossless:codec=zstd", "lossless:codec=lz4",
	                                    "cast",       "cast:type=fp16"};
	const int count = sizeof specs / sizeof *specs;
	FILE *f = fopen(path, "w");
	for (int k = 0; f && k < count; k++) {
		codec c;
		guarded wire;
		float x[FROZEN], y[FROZEN] = {0};
		uint64_t bytes;
		operators_cpu()->random_normal(NULL, x, FROZEN, 7, 0, 0);
		if (!codec_open(&c, specs[k], 0, 1, FROZEN) || !codec_code(&c, x, FROZEN, 0, &wire, &bytes) ||
		    codec_decode(&c, wire.data, bytes, y, FROZEN, 0))
			return 1;
		fprintf(f, "%s %016llx ", specs[k], (unsigned long long)digest_of(y));
		for (uint64_t i = 0; i < bytes; i++)
			fprintf(f, "%02x", (unsigned char)wire.data[i]);
		fprintf(f, "\n");
		guard_free(&wire);
		codec_close(&c);
	}
	return !f || fclose(f);
}

int main(int argc, char **argv)
{
	const char *src = getenv("GRADCOMP_SRC");
	char path[4096];
	snprintf(path, sizeof path, "%s/tests/golden/codes.txt", src ? src : ".");
	if (argc > 1 && !strcmp(argv[1], "--write"))
		return freeze(path);
	frozen_all(path);
	return done_testing();
}
