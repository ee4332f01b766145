/* gradcomp bench: how fast this job's ranks reduce, started by srun (or alone).
 *
 *   allreduce   plain all-reduce of floats through the collective plugin
 *   collectives every primitive of the installed collectives
 *   reduce      whole steps of a reducer, through compressor and collective
 *   compressors local work alone, of one process (bench_compressors.c)
 *   io          a dataset in the nodes' memory (bench_io.c)
 *
 * A sample is the time of the slowest rank, after a barrier; the figure is the
 * median. Results of the first two are checked before they are timed. */
#include "gradcomp/gradcomp.h"
#include "tools/bench.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int usage(FILE *to)
{
	fputs("usage: gradcomp bench allreduce [--bytes SIZE[,SIZE...]] [--iters N] [--json FILE]\n"
	      "       gradcomp bench collectives [--collectives SPEC[,SPEC...]] [--primitives NAME[,NAME...]]\n"
	      "                      [--compressors SPEC[,SPEC...]] [--bytes SIZE[,SIZE...]] [--iters N] [--seconds S]\n"
	      "                      [--json FILE]\n"
	      "       gradcomp bench reduce [--tensors SHAPE[,SHAPE...]] [--iters N] [--json FILE]\n"
	      "       gradcomp bench compressors [--help]\n"
	      "       gradcomp bench io [--help]\n"
	      "All but compressors are started by srun: one rank a task. SIZE: 1K, 64M. SHAPE: 1024x1024, 4096.\n"
	      "Under every SPEC of --compressors, which are codes, the coded primitives are measured; otherwise none.\n"
	      "defaults: --bytes 1K,1M,16M,64M --tensors 1024x1024,1024 --iters 20; collectives: all that are\n"
	      "installed, all that they serve, --seconds 1 a row at most\n",
	      to);
	return to == stderr ? 2 : 0;
}

/* Splits `list` at commas; every part through `take`. */
static int each_part(const char *list, int (*take)(bench_options *o, const char *part), bench_options *o)
{
	char part[64];
	for (;;) {
		size_t n = strcspn(list, ",");
		if (n == 0 || n >= sizeof part)
			return -1;
		memcpy(part, list, n);
		part[n] = 0;
		if (take(o, part) < 0)
			return -1;
		if (!list[n])
			return 0;
		list += n + 1;
	}
}

static int take_size(bench_options *o, const char *part)
{
	char *end;
	unsigned long long v = strtoull(part, &end, 10);
	unsigned shift = *end == 'K' ? 10 : *end == 'M' ? 20 : *end == 'G' ? 30 : 0;
	if (part[0] < '0' || part[0] > '9' || end[shift != 0] || v > (UINT64_C(1) << 40 >> shift) ||
	    (v << shift) % sizeof(float) != 0 || o->nsizes == BENCH_SIZES)
		return -1;
	o->sizes[o->nsizes++] = v << shift;
	return 0;
}

static int take_shape(bench_options *o, const char *part)
{
	if (o->ntensors == BENCH_TENSORS)
		return -1;
	bench_shape *s = &o->shapes[o->ntensors];
	const char *p = part;
	uint64_t numel = 1;
	for (s->ndim = 0; s->ndim < BENCH_DIMS; p++) {
		char *end;
		unsigned long long v = strtoull(p, &end, 10);
		if (*p < '0' || *p > '9' || v > UINT32_MAX || (v && numel > (UINT64_C(1) << 34) / v))
			return -1;
		s->dims[s->ndim++] = v;
		numel *= v;
		p = end;
		if (!*p) {
			o->ntensors++;
			return 0;
		}
		if (*p != 'x')
			return -1;
	}
	return -1;
}

static int parse(int argc, char **argv, bench_options *o)
{
	const char *sizes = "1K,1M,16M,64M", *tensors = "1024x1024,1024";
	o->iters = 20;
	o->seconds = 1;
	for (int i = 0; i < argc; i += 2) {
		const char *value = i + 1 < argc ? argv[i + 1] : NULL;
		char *end = NULL;
		int bad = !value;
		if (!value)
			fprintf(stderr, "gradcomp bench: %s needs a value\n", argv[i]);
		else if (!strcmp(argv[i], "--bytes"))
			sizes = value;
		else if (!strcmp(argv[i], "--tensors"))
			tensors = value;
		else if (!strcmp(argv[i], "--json"))
			o->json = value;
		else if (!strcmp(argv[i], "--collectives"))
			o->collectives = value;
		else if (!strcmp(argv[i], "--compressors"))
			o->compressors = value;
		else if (!strcmp(argv[i], "--primitives"))
			o->primitives = value;
		else if (!strcmp(argv[i], "--seconds")) {
			o->seconds = strtod(value, &end);
			bad = *end || !(o->seconds > 0 && o->seconds <= 3600);
			if (bad)
				fprintf(stderr, "gradcomp bench: --seconds '%s' is not above 0 and up to 3600\n",
				        value);
		} else if (!strcmp(argv[i], "--iters")) {
			o->iters = strtol(value, &end, 10);
			bad = *end || o->iters < 1 || o->iters > 1000000;
			if (bad)
				fprintf(stderr, "gradcomp bench: --iters '%s' is not from 1 to 1000000\n", value);
		} else {
			fprintf(stderr, "gradcomp bench: unknown option '%s'\n", argv[i]);
			bad = 1;
		}
		if (bad)
			return -1;
	}
	if (each_part(sizes, take_size, o) < 0) {
		fprintf(stderr, "gradcomp bench: --bytes '%s': up to %d sizes like 1K,64M, multiples of 4\n", sizes,
		        BENCH_SIZES);
		return -1;
	}
	if (each_part(tensors, take_shape, o) < 0) {
		fprintf(stderr, "gradcomp bench: --tensors '%s': up to %d shapes like 1024x1024,4096\n", tensors,
		        BENCH_TENSORS);
		return -1;
	}
	return 0;
}

int cmd_bench(int argc, char **argv)
{
	gradcomp_error err = {0};
	bench_options o = {0};
	gradcomp_job *job = NULL;
	int (*body)(gradcomp_job *, const bench_options *, FILE *, gradcomp_error *);
	FILE *json = NULL;
	int status = 1;
	if (argc > 1 && (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h")))
		return usage(stdout);
	if (argc > 1 && !strcmp(argv[1], "compressors"))
		return bench_compressors(argc - 1, argv + 1);
	if (argc > 1 && !strcmp(argv[1], "io"))
		return bench_io(argc - 1, argv + 1);
	if (argc > 1 && !strcmp(argv[1], "allreduce"))
		body = bench_allreduce;
	else if (argc > 1 && !strcmp(argv[1], "collectives"))
		body = bench_collectives;
	else if (argc > 1 && !strcmp(argv[1], "reduce"))
		body = bench_reduce;
	else
		return usage(stderr);
	if (argc > 2 && (!strcmp(argv[2], "--help") || !strcmp(argv[2], "-h")))
		return usage(stdout);
	if (parse(argc - 2, argv + 2, &o) < 0)
		return 2;
	o.resident_before = bench_resident();
	if (gradcomp_job_create(NULL, &job, &err) < 0)
		goto fail;
	if (o.json && gradcomp_job_rank(job) == 0 && !(json = fopen(o.json, "w"))) {
		snprintf(err.text, sizeof err.text, "cannot write %s", o.json);
		goto fail;
	}
	if (json)
		fputs("[\n", json);
	status = body(job, &o, json, &err) < 0;
	if (status)
		goto fail;
	if (json && (fputs("\n]\n", json) < 0 || fclose(json) != 0)) {
		json = NULL;
		snprintf(err.text, sizeof err.text, "cannot write %s", o.json);
		goto fail;
	}
	if (gradcomp_job_free(job, &err) < 0)
		goto fail;
	return 0;
fail:
	fprintf(stderr, "gradcomp bench: %s\n", err.text);
	if (json)
		fclose(json);
	return 1; /* the other ranks hear of it by this one's end */
}
