/* For bench programs of one process: medians of many runs, printed and, with --json
 * FILE, kept. A program defines its struct bench. */
#ifndef BENCH_TIMING_H
#define BENCH_TIMING_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct bench;

static struct timing {
	const char *program;
	FILE *json;
	int rows;
	double budget; /* seconds a row */
} timing = {.budget = 0.3};

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Seconds. */
static double median(void (*call)(struct bench *), struct bench *w)
{
	enum { MOST = 1000 };
	static double t[MOST];
	int n = 0;
	call(w);
	for (double start = now(); n < MOST && (n < 3 || now() - start < timing.budget); n++) {
		double begin = now();
		call(w);
		t[n] = now() - begin;
	}
	qsort(t, (size_t)n, sizeof *t, by_value);
	return t[n / 2];
}

static void begin(int argc, char **argv, const char *program)
{
	timing.program = program;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--quick"))
			timing.budget = 0.02;
		else if (!strcmp(argv[i], "--json") && i + 1 < argc && !timing.json) {
			timing.json = fopen(argv[++i], "w");
			if (!timing.json) {
				perror(argv[i]);
				exit(1);
			}
		} else {
			fprintf(stderr, "usage: %s [--json FILE] [--quick]\n", program);
			exit(2);
		}
	}
	if (timing.json)
		fprintf(timing.json, "[");
}

/* Before the members of a row of the file. */
static void next_row(void)
{
	fflush(stdout);
	if (timing.json)
		fprintf(timing.json, "%s\n  ", timing.rows++ ? "," : "");
}

static int end(void)
{
	if (!timing.json)
		return 0;
	fprintf(timing.json, "\n]\n");
	if (!fclose(timing.json))
		return 0;
	fprintf(stderr, "%s: ", timing.program);
	perror("writing the JSON file");
	return 1;
}

/* n floats, all touched. */
static float *room(size_t n)
{
	float *p = aligned_alloc(64, (n * 4 + 127) / 64 * 64);
	if (!p) {
		perror(timing.program);
		exit(1);
	}
	memset(p, 0, n * 4);
	return p;
}

#endif
