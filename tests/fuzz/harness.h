/* Parsers of what comes over the wire: the program around a harness. Without
 * libFuzzer (-DLIBFUZZER) it runs the seed corpus, corpus/NAME, and mutants of it;
 * GRADCOMP_FUZZ_SEED and GRADCOMP_FUZZ_ROUNDS as in mutate.h. */
#ifndef TESTS_FUZZ_HARNESS_H
#define TESTS_FUZZ_HARNESS_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#ifndef LIBFUZZER
#include "tests/fuzz/mutate.h"
#include "tests/support/tap.h"

#include <dirent.h>
#include <stdio.h>

#define WIRE_SEEDS 64
#define WIRE_BYTES 8192

static uint8_t wire_seed[WIRE_SEEDS][WIRE_BYTES];
static size_t wire_bytes[WIRE_SEEDS];
static int wire_seeds;

static void wire_read(const char *name)
{
	const char *src = getenv("GRADCOMP_SRC");
	char path[600];
	struct dirent *e;
	DIR *d;
	snprintf(path, sizeof path, "%s/tests/fuzz/corpus/%s", src ? src : ".", name);
	d = opendir(path);
	while (d && (e = readdir(d)) && wire_seeds < WIRE_SEEDS) {
		char file[900];
		FILE *f;

		if (e->d_name[0] == '.')
			continue;
		snprintf(file, sizeof file, "%s/%s", path, e->d_name);
		f = fopen(file, "rb");
		if (!f)
			continue;
		wire_bytes[wire_seeds] = fread(wire_seed[wire_seeds], 1, WIRE_BYTES, f);
		wire_seeds++;
		fclose(f);
	}
	if (d)
		closedir(d);
}

/* taken and refused count what the harness saw; both must have happened. */
static int wire_main(const char *name, long rounds, const long *taken, const long *refused)
{
	static uint8_t data[WIRE_BYTES];
	wire_read(name);
	ok(wire_seeds > 2, "%d seeds in the corpus", wire_seeds);
	for (int i = 0; i < wire_seeds; i++)
		LLVMFuzzerTestOneInput(wire_seed[i], wire_bytes[i]);
	ok(*taken > 0, "of the seeds %ld are taken, %ld refused", *taken, *refused);
	rounds = mutate_begin(rounds);
	for (long i = 0; i < rounds && wire_seeds; i++) {
		int s = (int)draw((uint32_t)wire_seeds);
		size_t n = wire_bytes[s];

		memcpy(data, wire_seed[s], n);
		if (!draw(8))
			n = draw((uint32_t)n + 1);
		mutate(data, n);
		LLVMFuzzerTestOneInput(data, n);
	}
	tap_tried((unsigned long)rounds, "mutated inputs");
	ok(*refused > rounds / 50, "of %ld mutants and seeds %ld are refused, %ld taken", rounds, *refused, *taken);
	return done_testing();
}
#endif

#endif
