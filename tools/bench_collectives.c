/* gradcomp bench collectives: the primitives of installed collectives on this job's
 * ranks, each plugin on links of its own that count what is sent, under codes that
 * count what is coded.
 *
 * Every row is checked before it is timed: plain primitives against exact sums, coded
 * ones by what must hold of them: the sum of what all ranks put in is the result and
 * all that coding lost. Bytes are those of the whole vector: what an all-reduce sums, a
 * reduce-scatter takes in and an all-gather ends with. */
#include "tools/bench.h"

#include "tools/bench_count.h"
#include "tools/bench_local.h"
#include "tools/bench_specs.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { MOST_SPECS = 32, SMALL = 65536, SMALL_CALLS = 100, FEWEST = 3 };

typedef enum primitive {
	ALLREDUCE,
	REDUCE_SCATTER,
	ALLGATHER,
	BROADCAST,
	CODED_ALLREDUCE,
	CODED_REDUCE_SCATTER,
	CODED_ALLGATHER,
	PRIMITIVES
} primitive;

static const struct {
	const char *name;
	uint32_t serves;
} primitives[PRIMITIVES] = {
	{"all-reduce", GRADCOMP_CAN_ALLREDUCE},
	{"reduce-scatter", GRADCOMP_CAN_REDUCE_SCATTER},
	{"all-gather", GRADCOMP_CAN_ALLGATHER},
	{"broadcast", GRADCOMP_CAN_BROADCAST},
	{"coded-all-reduce", GRADCOMP_CAN_CODED_ALLREDUCE},
	{"coded-reduce-scatter", GRADCOMP_CAN_CODED_REDUCE_SCATTER},
	{"coded-all-gather", GRADCOMP_CAN_CODED_ALLGATHER},
};

typedef struct bench {
	gradcomp_group *world;
	int rank, P;
	const bench_options *o;
	FILE *json;
	int rows;
	/* These are the collective and the code at work. */
	const char *spec;
	const struct gradcomp_collective_v1 *plugin;
	void *instance;
	counted_links links;
	const char *code_spec; /* NULL: none */
	counted_codec codec;
	/* These are for the size at work: what this rank puts in, the buffer, what coding lost, and room to check
	 * with. */
	uint64_t n, *counts, *bytes;
	uint64_t begin; /* where this rank's block begins */
	float *in, *x, *lost, *room;
	double *seconds, cpu; /* seconds of samples, and of CPUs in all of them */
} bench;

static gradcomp_status call(bench *b, primitive what, gradcomp_error *err)
{
	const struct gradcomp_collective_v1 *c = b->plugin;
	switch (what) {
	case ALLREDUCE:
		return c->allreduce(b->instance, b->x, b->n, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	case REDUCE_SCATTER:
		return c->reduce_scatter(b->instance, b->x, b->counts, GRADCOMP_F32, GRADCOMP_SUM, 1.0, err);
	case ALLGATHER:
		return c->allgather(b->instance, b->x, b->bytes, err);
	case BROADCAST:
		return c->broadcast(b->instance, b->x, b->n * sizeof(float), 0, err);
	case CODED_ALLREDUCE:
		return c->coded_allreduce(b->instance, b->x, b->n, 1.0 / b->P, &b->codec.api, 0, b->lost, err);
	case CODED_REDUCE_SCATTER:
		return c->coded_reduce_scatter(b->instance, b->x, b->counts, 1.0 / b->P, &b->codec.api, 0, b->lost,
		                               err);
	case CODED_ALLGATHER:
		return c->coded_allgather(b->instance, b->x, b->counts, &b->codec.api, 0, b->lost, err);
	case PRIMITIVES:
		break;
	}
	return GRADCOMP_ERR_INTERNAL;
}

/* Small whole numbers, whose sums are exact. */
static float whole(int rank, uint64_t i)
{
	return (float)((i * 7 + (uint64_t)rank * 13) % 97);
}

static int owner(const bench *b, uint64_t i)
{
	int r = 0;
	for (uint64_t end = b->counts[0]; i >= end; end += b->counts[++r])
		;
	return r;
}

/* Numbers of the result that are not what they should be, on this rank. */
static uint64_t plain_wrong(bench *b, primitive what)
{
	uint64_t end = b->begin + b->counts[b->rank], wrong = 0;
	for (uint64_t i = 0; i < b->n; i++) {
		float want = 0;
		if (what == REDUCE_SCATTER && (i < b->begin || i >= end))
			continue;
		for (int r = 0; what <= REDUCE_SCATTER && r < b->P; r++)
			want += whole(r, i);
		if (what == ALLGATHER)
			want = whole(owner(b, i), i);
		if (what == BROADCAST)
			want = whole(0, i);
		wrong += b->x[i] != want;
	}
	return wrong;
}

/* 1 when something was lost that no rank has, -1 with an error. */
static int coded_wrong(bench *b, primitive what, gradcomp_error *err)
{
	uint64_t from = what == CODED_ALLREDUCE ? 0 : b->begin;
	uint64_t to = what == CODED_ALLREDUCE ? b->n : b->begin + b->counts[b->rank];
	double off = 0, all = 0;
	memcpy(b->room, b->in, b->n * sizeof(float));
	if (what == CODED_ALLGATHER) {
		for (uint64_t i = from; i < to; i++)
			b->room[i] -= b->lost[i - from];
	} else {
		for (uint64_t i = 0; i < b->n; i++)
			b->room[i] -= b->lost[i];
		if (gradcomp_allreduce(b->world, b->room, b->n, GRADCOMP_F32, GRADCOMP_SUM, err) < 0)
			return -1;
	}
	for (uint64_t i = from; i < to; i++) {
		double v = (double)b->x[i] * (what == CODED_ALLGATHER ? 1 : b->P);
		off += (v - b->room[i]) * (v - b->room[i]);
		all += v * v;
	}
	return !(off <= 1e-10 * all);
}

static int checked(bench *b, primitive what, gradcomp_error *err)
{
	int64_t wrong;
	for (uint64_t i = 0; i < b->n; i++)
		b->in[i] = whole(b->rank, i);
	if (what >= CODED_ALLREDUCE)
		gradcomp_host_operators()->random_normal(NULL, b->in, b->n, 1, 7, (uint64_t)b->rank << 40);
	memcpy(b->x, b->in, b->n * sizeof(float));
	if (call(b, what, err) < 0)
		return -1;
	wrong = what < CODED_ALLREDUCE ? (int64_t)plain_wrong(b, what) : coded_wrong(b, what, err);
	if (wrong < 0 || gradcomp_allreduce(b->world, &wrong, 1, GRADCOMP_I64, GRADCOMP_MAX, err) < 0)
		return -1;
	return wrong ? bench_failed(err, GRADCOMP_ERR_INTERNAL, "%s: %s of %llu numbers gave a wrong result", b->spec,
	                            primitives[what].name, (unsigned long long)b->n)
	             : 0;
}

/* Seconds that this process has had a CPU. */
static double worked(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* Seconds of a sample of `calls`, of this rank; negative with an error. */
static double sample(bench *b, primitive what, int calls, gradcomp_error *err)
{
	/* The numbers that a rank gives (its part, in an all-gather) are written before each call, as in training,
	 * so that no other rank has it in its caches. */
	if (what >= CODED_ALLREDUCE)
		memcpy(b->x, b->in, b->n * sizeof(float));
	else if (what == ALLGATHER)
		memset(b->x + b->begin, 0, b->counts[b->rank] * sizeof(float));
	else
		memset(b->x, 0, b->n * sizeof(float));
	if (gradcomp_barrier(b->world, err) < 0)
		return -1;
	double start = clock_now(), before = worked();
	for (int c = 0; c < calls; c++)
		if (call(b, what, err) < 0)
			return -1;
	b->cpu += (worked() - before) / calls;
	double took = (clock_now() - start) / calls;
	/* A rank's next call takes nothing from those that are not there yet. */
	return gradcomp_barrier(b->world, err) < 0 ? -1 : took;
}

/* The largest of all ranks' numbers. */
static int largest(bench *b, double *numbers, uint64_t n, gradcomp_error *err)
{
	return gradcomp_allreduce(b->world, numbers, n, GRADCOMP_F64, GRADCOMP_MAX, err) < 0 ? -1 : 0;
}

static void row(bench *b, primitive what, double seconds, const double *counts, long samples)
{
	double bytes = (double)(b->n * sizeof(float));
	const char *code = what < CODED_ALLREDUCE ? "-" : b->code_spec;
	printf("%-22s %-20s %-16s %12.0f %14.1f %9.3f %12.1f %14.0f %9.0f %7.2f\n", b->spec, primitives[what].name,
	       code, bytes, seconds * 1e6, bytes / seconds / 1e9, b->cpu * 1e6, counts[0], counts[1], counts[3]);
	fflush(stdout);
	if (!b->json)
		return;
	fprintf(b->json,
	        "%s {\"collective\": \"%s\", \"primitive\": \"%s\", \"compressor\": \"%s\", \"bytes\": %.0f, \"ranks\": %d, "
	        "\"nodes\": %d, \"seconds\": %.9f, \"cpu_seconds\": %.9f, \"samples\": %ld, \"sent_bytes\": %.0f, \"messages\": %.0f, "
	        "\"code_calls\": %.0f, \"blocks_coded\": %.4f, \"correct\": true}",
	        b->rows++ ? ",\n" : "", b->spec, primitives[what].name, code, bytes, b->P, b->links.api.nnodes, seconds,
	        b->cpu, samples, counts[0], counts[1], counts[2], counts[3]);
}

static int measure(bench *b, primitive what, gradcomp_error *err)
{
	int calls = b->n * sizeof(float) < SMALL ? SMALL_CALLS : 1;
	double once, median;
	long samples;
	if (checked(b, what, err))
		return -1;
	b->cpu = 0;
	b->links.bytes = b->links.messages = b->codec.calls = b->codec.numbers = 0;
	once = sample(b, what, 1, err);
	/* These are one call's, of the rank that sends and codes most. */
	double counts[] = {(double)b->links.bytes, (double)b->links.messages, (double)b->codec.calls,
	                   (double)b->codec.numbers / ((double)b->n / b->P)};
	if (once < 0 || largest(b, counts, 4, err) || largest(b, &once, 1, err))
		return -1;
	samples = once * calls > 0 ? (long)fmin(b->o->seconds / (once * calls), (double)b->o->iters) : b->o->iters;
	samples = samples < FEWEST ? FEWEST : samples;
	for (long i = samples > FEWEST ? -1 : 0; i < samples; i++) {
		double t = sample(b, what, calls, err);
		if (t < 0)
			return -1;
		if (i >= 0)
			b->seconds[i] = t;
	}
	b->cpu /= (double)(1 + samples + (samples > FEWEST));
	if (bench_median(b->world, b->seconds, samples, &median, err) < 0 ||
	    gradcomp_allreduce(b->world, &b->cpu, 1, GRADCOMP_F64, GRADCOMP_SUM, err) < 0)
		return -1;
	if (b->rank == 0)
		row(b, what, median, counts, samples);
	return 0;
}

static int sized(bench *b, uint64_t n, gradcomp_error *err)
{
	uint64_t P = (uint64_t)b->P;
	b->n = n;
	b->begin = 0;
	for (uint64_t r = 0; r < P; r++) {
		b->counts[r] = n / P + (r < n % P);
		b->bytes[r] = b->counts[r] * sizeof(float);
		b->begin += r < (uint64_t)b->rank ? b->counts[r] : 0;
	}
	float **vectors[] = {&b->in, &b->x, &b->lost, &b->room};
	for (int k = 0; k < 4; k++) {
		free(*vectors[k]);
		*vectors[k] = calloc(n + 16, sizeof(float));
		if (!*vectors[k])
			return bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for vectors of %llu numbers",
			                    (unsigned long long)n);
	}
	return 0;
}

static bool wanted(const bench *b, primitive what)
{
	const char *list = b->o->primitives;
	size_t n = strlen(primitives[what].name);
	if (!(b->plugin->serves & primitives[what].serves) || (what >= CODED_ALLREDUCE) != (b->code_spec != NULL))
		return false;
	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (!strncmp(p, primitives[what].name, n) && (!p[n] || p[n] == ','))
			return true;
	return !list;
}

/* All primitives and sizes, plain ones when there is no code. */
static int each_primitive(bench *b, gradcomp_error *err)
{
	for (uint32_t s = 0; s < b->o->nsizes; s++) {
		if (sized(b, b->o->sizes[s] / sizeof(float), err))
			return -1;
		for (int what = 0; what < PRIMITIVES; what++)
			if (wanted(b, (primitive)what) && measure(b, (primitive)what, err))
				return -1;
	}
	return 0;
}

static int under_codes(bench *b, const bench_spec *codes, int ncodes, gradcomp_error *err)
{
	for (int k = 0; k < ncodes; k++) {
		local l;
		/* A code takes runs of any length, whatever the layout. */
		if (local_open(&l, codes[k].path, codes[k].spec, 1, 1, 1, err))
			return -1;
		if (!(l.cost.compressor->patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED))) {
			local_close(&l);
			return bench_failed(err, GRADCOMP_ERR_UNSUPPORTED, "--compressors: '%s' is no code",
			                    codes[k].spec);
		}
		count_codec(&b->codec, l.cost.compressor, l.cost.instance);
		b->code_spec = codes[k].spec;
		int status = each_primitive(b, err);
		local_close(&l);
		b->code_spec = NULL;
		if (status)
			return -1;
	}
	return 0;
}

static int one(bench *b, const bench_spec *s, const bench_spec *codes, int ncodes, gradcomp_error *err)
{
	const gradcomp_plugin_info *info;
	const gradcomp_links *links = NULL;
	gradcomp_plugin_kind kind;
	gradcomp_spec *values = NULL;
	gradcomp_host host;
	int status = -1;
	if (gradcomp_plugin_open(s->path, &kind, &info, err))
		return -1;
	b->plugin = (const struct gradcomp_collective_v1 *)(const void *)info;
	b->spec = s->spec;
	if (b->plugin->traits & GRADCOMP_TRAIT_CUDA && !(b->plugin->traits & GRADCOMP_TRAIT_ELSE_HOST)) {
		if (b->rank == 0)
			printf("%-22s takes device memory, which this bench does not\n", s->spec);
		return 0;
	}
	local_host(&host);
	if (gradcomp_spec_parse(info, s->spec, &values, err) || gradcomp_links_open(b->world, &links, err))
		goto out;
	count_links(&b->links, links);
	if ((b->plugin->check && b->plugin->check(&host, values->values, err)) ||
	    b->plugin->create(&host, values->values, &b->links.api, &b->instance, err))
		goto out;
	status = each_primitive(b, err) || under_codes(b, codes, ncodes, err) ? -1 : 0;
	b->plugin->destroy(b->instance);
out:
	gradcomp_links_close(b->world, links);
	gradcomp_spec_free(values);
	return status;
}

static int known(const char *list, gradcomp_error *err)
{
	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL) {
		size_t n = strcspn(p, ",");
		int at = 0;
		while (at < PRIMITIVES && (strlen(primitives[at].name) != n || strncmp(primitives[at].name, p, n)))
			at++;
		if (at == PRIMITIVES)
			return bench_failed(
				err, GRADCOMP_ERR_INVALID,
				"--primitives: '%.*s' is none of all-reduce, reduce-scatter, all-gather, broadcast, "
				"coded-all-reduce, coded-reduce-scatter, coded-all-gather",
				(int)n, p);
	}
	return 0;
}

int bench_collectives(gradcomp_job *job, const bench_options *o, FILE *json, gradcomp_error *err)
{
	static bench_spec specs[MOST_SPECS], codes[MOST_SPECS];
	bench b = {.world = gradcomp_job_world(job),
	           .rank = gradcomp_job_rank(job),
	           .P = gradcomp_job_nranks(job),
	           .o = o,
	           .json = json};
	int nspecs =
		bench_specs_find(GRADCOMP_KIND_COLLECTIVE, o->collectives, "--collectives", specs, MOST_SPECS, err);
	int ncodes = 0, status = nspecs < 0 || known(o->primitives, err) ? -1 : 0;
	if (!status && o->compressors)
		ncodes = bench_specs_find(GRADCOMP_KIND_COMPRESSOR, o->compressors, "--compressors", codes, MOST_SPECS,
		                          err);
	if (status || ncodes < 0)
		return -1;
	b.seconds = calloc((size_t)(o->iters > FEWEST ? o->iters : FEWEST), sizeof *b.seconds);
	b.counts = calloc(2 * (size_t)b.P, sizeof *b.counts);
	b.bytes = b.counts ? b.counts + b.P : NULL;
	if (!b.seconds || !b.counts)
		status = bench_failed(err, GRADCOMP_ERR_NOMEM, "no memory for the samples");
	else if (b.rank == 0)
		printf("%-22s %-20s %-16s %12s %14s %9s %12s %14s %9s %7s   %d ranks\n", "collective", "primitive",
		       "compressor", "bytes", "microseconds", "GB/s", "CPU", "bytes sent", "messages", "coded", b.P);
	for (int k = 0; !status && k < nspecs; k++)
		status = one(&b, &specs[k], codes, ncodes, err);
	free(b.seconds);
	free(b.counts);
	free(b.in);
	free(b.x);
	free(b.lost);
	free(b.room);
	return status;
}
