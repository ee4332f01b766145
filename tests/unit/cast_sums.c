/* cast adds in 32 bits: on 2 to 64 ranks the error is that of rounding once on the way in and once on the way out, and
 * the bytes are the formula's; what is not finite, too large or too small for 16 bits, 16-bit gradients, and sizes and
 * ranks that do not divide. */
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

#include <math.h>
#include <stdbool.h>

enum { BF16, F16 };

static uint64_t mixed(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

/* The sum of four numbers of 16 bits, less its mean: close to normal, its variance 1/3. */
static float gradient(int rank, uint64_t i)
{
	const uint64_t x = mixed(i * 1024 + (uint64_t)rank + 1);
	const uint64_t sum = (x & 0xffff) + (x >> 16 & 0xffff) + (x >> 32 & 0xffff) + (x >> 48);
	return (float)((double)sum / 65536 - 2);
}

/* The nearest number of the type, of two the even one; x is neither tiny nor huge. */
static double rounded(double x, int type)
{
	int e;
	const int bits = type == F16 ? 11 : 8;
	frexp(x, &e);
	return x == 0 ? 0 : ldexp(nearbyint(ldexp(x, bits - e)), e - bits);
}

typedef struct summed {
	const char *compressor, *collective;
	int type;
	uint64_t n;
	double error, reference, sent; /* relative errors; bytes of a step, the mean over ranks */
	int failed;
	uint64_t print;
} summed;

static uint64_t print_of(const void *x, uint64_t bytes)
{
	const unsigned char *p = x;
	uint64_t h = bytes;
	for (uint64_t i = 0; i < bytes; i++)
		h = (h ^ p[i]) * 0x100000001b3u;
	return h;
}

/* The second of two equal steps of one tensor of n numbers of a type: in the first ranks get to know each other. */
static gradcomp_status average(gradcomp_group *g, const summed *s, void *x, uint64_t n, gradcomp_dtype dtype,
                               double *sent, gradcomp_error *err)
{
	const gradcomp_tensor_desc desc = {NULL, &n, 1, dtype};
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = s->compressor,
	                                    .collective = s->collective,
	                                    .schedule = "single",
	                                    .seed = 1};
	const uint64_t bytes = n * (dtype == GRADCOMP_F32 ? 4 : 2);
	gradcomp_reducer_stats before = {.struct_size = sizeof before}, after = before;
	gradcomp_reducer *r;
	void *first = malloc(bytes + 1);
	gradcomp_status st = gradcomp_reducer_create(g, &desc, 1, &o, &r, err);
	if (st || !first) {
		free(first);
		return st ? st : GRADCOMP_ERR_NOMEM;
	}
	memcpy(first, x, bytes);
	for (int step = 0; step < 2 && !st; step++) {
		gradcomp_reducer_get_stats(r, &before);
		st = gradcomp_reducer_ready(r, 0, step ? x : first, err);
		if (!st)
			st = gradcomp_reducer_wait(r, err);
	}
	gradcomp_reducer_get_stats(r, &after);
	*sent = after.wire_bytes - before.wire_bytes;
	gradcomp_reducer_free(r);
	free(first);
	return st;
}

/* Does a step; rank 0 finds what is to be told of it. */
static void one_rank(gradcomp_job *job, int rank, int P, summed *s)
{
	gradcomp_error err = {0};
	float *x = malloc((s->n + 1) * sizeof *x);
	double off = 0, best = 0, all = 0;
	for (uint64_t i = 0; i < s->n; i++)
		x[i] = gradient(rank, i);
	s->failed = average(gradcomp_job_world(job), s, x, s->n, GRADCOMP_F32, &s->sent, &err);
	if (s->failed)
		printf("# rank %d: %s\n", rank, err.text);
	s->print = print_of(x, s->n * sizeof *x);
	for (uint64_t i = 0; rank == 0 && i < s->n; i++) {
		double mean = 0, in = 0;
		for (int w = 0; w < P; w++) {
			mean += (double)gradient(w, i) / P;
			in += rounded((double)gradient(w, i), s->type) / P;
		}
		off += (x[i] - mean) * (x[i] - mean);
		best += (rounded(in, s->type) - mean) * (rounded(in, s->type) - mean);
		all += mean * mean;
	}
	s->error = sqrt(off / all);
	s->reference = sqrt(best / all);
	free(x);
}

typedef struct of_all {
	summed of[MAX_RANKS];
} of_all;

static void thread_body(gradcomp_job *job, int rank, int P, void *arg)
{
	one_rank(job, rank, P, &((of_all *)arg)->of[rank]);
}

static const summed *asked;

static void process_step(gradcomp_job *job, int rank, process_board *board, void *room)
{
	summed *s = room;
	*s = *asked;
	one_rank(job, rank, board->P, s);
}

/* at_most: of the reference, more than `at_least`. */
static void judge(const summed *s, int P, const summed *of, size_t stride, double at_least, double at_most)
{
	const double formula = 2.0 * (P - 1) / P * 2 * (double)s->n;
	double sent = 0;
	int wrong = 0;
	for (int r = 0; r < P; r++) {
		const summed *one = (const void *)((const char *)of + (size_t)r * stride);
		wrong |= one->failed || one->print != of->print;
		sent += one->sent / P;
	}
	ok(!wrong && of->error >= at_least * of->reference && of->error <= at_most * of->reference,
	   "%s over %s, %d ranks: error %.4f %%, %.4f of that of rounding in and out", s->compressor, s->collective, P,
	   100 * of->error, of->error / of->reference);
	ok(sent <= 1.003 * formula, "... and %.5f of the bytes of the formula", sent / formula);
}

static void among_threads(int P, summed s, double at_least, double at_most)
{
	const char *const settings[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	static of_all all;
	for (int r = 0; r < P; r++)
		all.of[r] = s;
	run_ranks(P, settings, thread_body, &all);
	judge(&s, P, all.of, sizeof s, at_least, at_most);
}

static void among_processes(int P, summed s)
{
	const char *const settings[] = {"transport.timeout=60", "gradcomp.log=error", NULL};
	asked = &s;
	process_board *b = run_processes(P, settings, process_step, sizeof s);
	ok(b != NULL, "%d processes", P);
	if (!b)
		return;
	const summed *first = process_room(b, 0);
	const size_t stride = P > 1 ? (size_t)((const char *)process_room(b, 1) - (const char *)first) : 0;
	judge(&s, P, first, stride, 0.9, 1.02);
	end_processes(b);
}

/* Notes what was wrong on each rank, as bits or a number; -1: the call failed. */
typedef struct oddities {
	const char *compressor, *collective;
	int wrong[MAX_RANKS];
} oddities;

static float bf16_of(double x)
{
	return (float)rounded(x, BF16);
}

static int bad(bool so, int k)
{
	return so ? 0 : k;
}

/* Numbers that are not finite stay where they are; others are too large or too small for the type. */
static void odd_numbers(gradcomp_job *job, int rank, int P, void *arg)
{
	enum { N = 1000 };
	oddities *o = arg;
	const summed s = {.compressor = o->compressor, .collective = o->collective};
	const bool half = strstr(o->compressor, "fp16"), saturates = strstr(o->compressor, "saturate=yes");
	gradcomp_error err = {0};
	float x[N];
	double sent;
	for (int i = 0; i < N; i++)
		x[i] = (float)(1 + rank);
	x[3] = rank == 1 ? NAN : 1;
	x[500] = rank == 0 ? INFINITY : 1;
	x[501] = rank == 0 ? -INFINITY : 1;
	x[502] = rank == P - 1 ? 7e4f * (float)P : 0;
	x[503] = 1e-40f;
	x[504] = -0.0f;
	x[999] = 0x1p-24f;
	if (average(gradcomp_job_world(job), &s, x, N, GRADCOMP_F32, &sent, &err)) {
		printf("# %s\n", err.text);
		o->wrong[rank] = -1;
		return;
	}
	const float most = half ? saturates ? 65504 / (float)P : INFINITY : bf16_of((double)bf16_of(7e4 * P) / P);
	int wrong = bad(isnan(x[3]), 1) + bad(isinf(x[500]) && x[500] > 0, 2) + bad(isinf(x[501]) && x[501] < 0, 4) +
	            bad(x[502] == most || fabsf(x[502] - most) < 2e-3f * most, 8) +
	            bad(half ? x[503] == 0 : fabsf(x[503] - 1e-40f) <= 0x1p-134f, 16) + bad(x[504] == 0, 32) +
	            bad(x[999] == 0x1p-24f, 64);
	for (int i = 0; i < N; i++)
		if (i != 3 && (i < 500 || i > 504) && i != 999)
			wrong |= bad(x[i] == (half ? (float)rounded((P + 1) / 2.0, F16) : bf16_of((P + 1) / 2.0)), 128);
	o->wrong[rank] = wrong;
}

/* 16-bit gradients are not rounded on the way in: the mean is, once. Sums of numbers of so few bits are exact. */
static void short_gradients(gradcomp_job *job, int rank, int P, void *arg)
{
	enum { N = 777 };
	oddities *o = arg;
	const summed s = {.compressor = o->compressor, .collective = o->collective};
	gradcomp_error err = {0};
	uint16_t x[N];
	double sent;
	int wrong = 0;
	for (int i = 0; i < N; i++) {
		const float v = gradient(rank, (uint64_t)i);
		uint32_t bits;
		memcpy(&bits, &v, sizeof bits);
		x[i] = (uint16_t)(bits >> 16);
	}
	if (average(gradcomp_job_world(job), &s, x, N, GRADCOMP_BF16, &sent, &err)) {
		printf("# %s\n", err.text);
		o->wrong[rank] = -1;
		return;
	}
	for (int i = 0; i < N; i++) {
		double sum = 0;
		float got;
		for (int w = 0; w < P; w++) {
			float v = gradient(w, (uint64_t)i);
			uint32_t bits;
			memcpy(&bits, &v, sizeof bits);
			bits &= 0xffff0000;
			memcpy(&v, &bits, sizeof v);
			sum += (double)v;
		}
		const uint32_t bits = (uint32_t)x[i] << 16;
		memcpy(&got, &bits, sizeof got);
		wrong += got != bf16_of(sum / P);
	}
	o->wrong[rank] = wrong;
}

/* Averages no numbers, one, less than there are ranks, and as many as do not divide. */
static void small_ones(gradcomp_job *job, int rank, int P, void *arg)
{
	static const uint64_t sizes[] = {0, 1, 2, 4, 5, 31, 33, 4099};
	oddities *o = arg;
	const summed s = {.compressor = o->compressor, .collective = o->collective};
	gradcomp_error err = {0};
	float x[4099];
	double sent;
	for (size_t k = 0; k < sizeof sizes / sizeof *sizes && !o->wrong[rank]; k++) {
		for (uint64_t i = 0; i < sizes[k]; i++)
			x[i] = (float)(rank + 1) * 0.25f;
		if (average(gradcomp_job_world(job), &s, x, sizes[k], GRADCOMP_F32, &sent, &err)) {
			printf("# %s\n", err.text);
			o->wrong[rank] = -1;
		}
		for (uint64_t i = 0; i < sizes[k]; i++)
			o->wrong[rank] += x[i] != (P == 1 ? 0.25f : bf16_of(0.125 * (P + 1)));
	}
}

static void odd(int P, const char *compressor, const char *collective, const char *name,
                void (*body)(gradcomp_job *, int, int, void *))
{
	const char *const settings[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	oddities o = {.compressor = compressor, .collective = collective};
	int wrong = 0;
	run_ranks(P, settings, body, &o);
	for (int r = 0; r < P; r++)
		wrong |= o.wrong[r];
	ok(!wrong, "%s over %s, %d ranks: %s%s", compressor, collective, P, name, wrong ? "" : " as they must be");
	if (wrong)
		printf("# %#x\n", (unsigned)wrong);
}

int main(void)
{
	static const int two[] = {0, 0, 0, 0, 1, 1, 1, 1};
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	/* First, while no threads are about. */
	among_processes(64, (summed){.compressor = "cast:sum=f32", .collective = "auto", .n = 120000});
	among_threads(2, (summed){"cast:sum=f32", "auto", .n = 40000}, 0.9, 1.02);
	among_threads(8, (summed){"cast:sum=f32", "auto", .n = 40000}, 0.9, 1.02);
	among_threads(8, (summed){"cast:type=fp16,sum=f32", "direct", .type = F16, .n = 40000}, 0.9, 1.02);
	among_threads(16, (summed){"cast:sum=f32", "ring", .n = 60000}, 0.9, 1.02);
	/* Sums on the way have more, so this can fail. */
	among_threads(8, (summed){"cast:sum=wire", "ring", .n = 40000}, 1.3, 5);
	ranks_on(two);
	odd(8, "cast:sum=f32", "auto", "small sizes over two nodes", small_ones);
	ranks_on(NULL);
	for (int P = 1; P <= 5; P += 2)
		odd(P, "cast:sum=f32", P == 5 ? "ring" : "auto", "small sizes", small_ones);
	odd(3, "cast:sum=f32", "auto", "NaN, Inf, large and small numbers", odd_numbers);
	odd(3, "cast:type=fp16,sum=f32", "ring", "NaN, Inf, large and small numbers", odd_numbers);
	odd(3, "cast:type=fp16,sum=f32,saturate=yes", "direct", "NaN, Inf, large and small numbers", odd_numbers);
	odd(4, "cast:sum=f32", "auto", "gradients of BF16", short_gradients);
	odd(2, "cast:sum=f32", "hier", "gradients of BF16", short_gradients);
	return done_testing();
}
