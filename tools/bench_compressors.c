/* gradcomp bench compressors: the local work of a step, on one thread and without
 * links, as multiples of a memcpy of the same array in the same run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/bench.h"
#include "tools/bench_local.h"
#include "tools/bench_specs.h"
#include "tools/commands.h"
#include "base/json.h"

enum { MOST_SPECS = 64, MOST_RUNS = 101 };

static const char usage_text[] =
	"usage: gradcomp bench compressors [--compressors SPEC[,SPEC...]] [--rows N] [--columns N]\n"
	"                                  [--gradients FILE] [--runs N] [--json FILE]\n"
	"One rank, one thread, no job. Without --compressors: all that are installed, with their defaults.\n"
	"Input is Gaussian, heavy-tailed (cubed Gaussian) and, when given, FILE: raw floats, repeated.\n"
	"defaults: --rows 4096 --columns 4096 --runs 5\n";

typedef struct bench {
	uint64_t rows, columns;
	long runs;
	jsonw *json; /* NULL: none */
	bench_spec specs[MOST_SPECS];
	int nspecs;
	float *u, *copy;
} bench;

static double time_memcpy(const bench *b)
{
	double t[MOST_RUNS] = {0};
	for (long i = -1; i < b->runs; i++) {
		double start = clock_now();
		memcpy(b->copy, b->u, b->rows * b->columns * sizeof(float));
		/* Or it would not be done. */
		__asm__ volatile("" : : "r"(b->copy) : "memory");
		if (i >= 0)
			t[i] = clock_now() - start;
	}
	return fit_median(t, (size_t)b->runs);
}

static int measure(bench *b, const bench_spec *f, const char *input, gradcomp_error *err)
{
	double encode[MOST_RUNS] = {0}, decode[MOST_RUNS] = {0}, both[MOST_RUNS] = {0}, unit;
	local l;
	if (local_open(&l, f->path, f->spec, b->rows, b->columns, 1, err))
		return 1;
	unit = time_memcpy(b);
	for (long i = -2; i < b->runs; i++) {
		if (local_step(&l, b->u, err)) {
			local_close(&l);
			return 1;
		}
		if (i < 0)
			continue;
		encode[i] = l.cost.encode + l.cost.lost;
		decode[i] = l.cost.decode;
		both[i] = encode[i] + decode[i];
	}
	unit = (unit + time_memcpy(b)) / 2;
	double in = fit_median(encode, (size_t)b->runs) / unit, out = fit_median(decode, (size_t)b->runs) / unit;
	double sum = fit_median(both, (size_t)b->runs) / unit;
	double bits = 8.0 * (double)l.cost.bytes / (double)(b->rows * b->columns);
	printf("%-34s %-10s %8.2f %8.2f %8.2f %9.4f %10.2e\n", f->spec, input, in, out, sum, bits, l.relative_error);
	fflush(stdout);
	if (b->json) {
		json_put_object(b->json, NULL);
		json_put_string(b->json, "compressor", f->spec);
		json_put_string(b->json, "input", input);
		json_put_float(b->json, "encode", in);
		json_put_float(b->json, "decode", out);
		json_put_float(b->json, "both", sum);
		json_put_float(b->json, "bits_per_number", bits);
		json_put_float(b->json, "relative_error", l.relative_error);
		json_put_float(b->json, "memcpy_s", unit);
		json_put_end(b->json);
	}
	local_close(&l);
	return 0;
}

/* One that cannot run says why; the others are measured all the same. */
static int all(bench *b, const char *input, gradcomp_error *err)
{
	int status = 0;
	for (int k = 0; k < b->nspecs; k++)
		if (measure(b, &b->specs[k], input, err)) {
			fprintf(stderr, "gradcomp bench: %s: %s\n", b->specs[k].spec, err->text);
			status = bench_failed(err, GRADCOMP_ERR_UNSUPPORTED, "not all compressors could be measured");
		}
	return status;
}

static int from_file(bench *b, const char *path, gradcomp_error *err)
{
	uint64_t n = b->rows * b->columns, have;
	FILE *f = fopen(path, "rb");
	have = f ? fread(b->u, sizeof(float), n, f) : 0;
	if (f)
		fclose(f);
	for (uint64_t i = 0; i < have; i++)
		if (!isfinite(b->u[i]))
			have = 0;
	if (!have)
		return bench_failed(err, GRADCOMP_ERR_IO, "--gradients %s: not a file of finite floats", path);
	for (uint64_t i = have; i < n; i++)
		b->u[i] = b->u[i - have];
	return all(b, "file", err);
}

static int run(bench *b, const char *gradients, gradcomp_error *err)
{
	uint64_t n = b->rows * b->columns;
	const gradcomp_operators *op = gradcomp_host_operators();
	int status;
	b->u = malloc(n * sizeof(float) + 64);
	b->copy = malloc(n * sizeof(float) + 64);
	if (!b->u || !b->copy)
		return bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for the gradients");
	printf("%llu x %llu numbers, multiples of a memcpy of them\n%-34s %-10s %8s %8s %8s %9s %10s\n",
	       (unsigned long long)b->rows, (unsigned long long)b->columns, "compressor", "input", "encode", "decode",
	       "both", "bits", "error");
	op->random_normal(NULL, b->u, n, 1, 1, 0);
	status = all(b, "gaussian", err);
	for (uint64_t i = 0; i < n; i++)
		b->u[i] *= b->u[i] * b->u[i];
	status |= all(b, "heavy", err);
	return gradients ? status | from_file(b, gradients, err) : status;
}

/* A whole number from 1 to most; 0 when it is none. */
static long number(const char *text, long most)
{
	char *end;
	long v = strtol(text, &end, 10);
	return *text && !*end && v >= 1 && v <= most ? v : 0;
}

int bench_compressors(int argc, char **argv)
{
	const char *list = NULL, *rows = "4096", *columns = "4096", *runs = "5", *gradients = NULL, *json = NULL;
	const command_option options[] = {{"--compressors", &list, NULL},
	                                  {"--rows", &rows, NULL},
	                                  {"--columns", &columns, NULL},
	                                  {"--runs", &runs, NULL},
	                                  {"--gradients", &gradients, NULL},
	                                  {"--json", &json, NULL},
	                                  {0}};
	static bench b;
	gradcomp_error err = {0};
	FILE *file = NULL;
	jsonw writer;
	int status = command_take_options(argc, argv, usage_text, options, NULL, 0);
	if (status >= 0)
		return status;
	b.rows = (uint64_t)number(rows, 1 << 16);
	b.columns = (uint64_t)number(columns, 1 << 16);
	b.runs = number(runs, MOST_RUNS);
	if (!b.rows || !b.columns || !b.runs)
		return command_usage_error(
			usage_text, "--rows '%s', --columns '%s' and --runs '%s' must be from 1 to 65536, 65536 and %d",
			rows, columns, runs, MOST_RUNS);
	if (json && !(file = fopen(json, "w"))) {
		bench_failed(&err, GRADCOMP_ERR_IO, "cannot write %s", json);
		return command_failed(&err);
	}
	if (file) {
		b.json = &writer;
		json_put_start(b.json, file);
		json_put_array(b.json, NULL);
	}
	b.nspecs = bench_specs_find(GRADCOMP_KIND_COMPRESSOR, list, "--compressors", b.specs, MOST_SPECS, &err);
	status = b.nspecs < 0 || run(&b, gradients, &err);
	if (file) {
		json_put_end(b.json);
		json_put_finish(b.json);
		if ((ferror(file) | fclose(file)) && !status)
			status = bench_failed(&err, GRADCOMP_ERR_IO, "cannot write %s", json);
	}
	free(b.u);
	free(b.copy);
	return status ? command_failed(&err) : 0;
}
