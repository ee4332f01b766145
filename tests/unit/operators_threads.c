/* The operators of a job with several threads: the same bits for every number of
 * them, two callers at once, children of fork(). */
#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "gradcomp/sdk/lowrank.h"
#include "tests/support/operator_input.h"
#include "base/thread_pool.h"
#include "operators/operator_threads.h"

/* Not a multiple of anything; long runs of signs, and matrices of several parts. */
enum { N = 3 * OPERATOR_PART + 12345, ROWS = 700, COLUMNS = 333, RANK = 4, KINDS = 48 };

typedef struct inputs {
	float *x, *y, *P, *Q, *L;
} inputs;

static uint64_t hash(const void *p, size_t bytes)
{
	uint64_t h = 0xcbf29ce484222325u;
	for (const unsigned char *b = p; bytes--; b++)
		h = (h ^ *b) * 0x100000001b3u;
	return h;
}

typedef struct results {
	uint64_t of[KINDS];
	const char *name[KINDS];
	int local[KINDS]; /* may differ from what is not split */
	int count;
} results;

static void note(results *r, const char *name, int local, const void *p, size_t bytes)
{
	if (r->count == KINDS) {
		ok(0, "there is room for %s: KINDS", name);
		return;
	}
	r->name[r->count] = name;
	r->local[r->count] = local;
	r->of[r->count++] = hash(p, bytes);
}

static void elements(const gradcomp_operators *op, const inputs *in, float *z, results *r)
{
	const size_t bytes = N * sizeof *z;
	float limit = 1.5f;
	memcpy(z, in->y, bytes);
	op->add(NULL, z, in->x, N);
	op->scale(NULL, z, 0.7f, N);
	op->axpy(NULL, z, -0.3f, in->x, N);
	op->clamp(NULL, z, z, &limit, N);
	op->reduce(NULL, z, in->x, N, GRADCOMP_F32, GRADCOMP_MAX);
	op->scale_as(NULL, z, 1.1, N, GRADCOMP_F32);
	op->scale_by(NULL, z, &limit, z, N);
	op->axpy_by(NULL, z, &limit, in->x, N);
	note(r, "add, scale, axpy, clamp, reduce, scale_as, scale_by, axpy_by", 0, z, bytes);
	op->cast_scaled(NULL, z, in->x, N, GRADCOMP_BF16, 0.3f, 0.2f);
	note(r, "cast_scaled", 0, z, N * 2);
	op->cast_from_f32(NULL, z, in->x, N, GRADCOMP_BF16, 0);
	op->reduce(NULL, z, z, N, GRADCOMP_BF16, GRADCOMP_SUM);
	note(r, "casts to and sums of bf16", 0, z, N * 2);
	op->cast_from_f32(NULL, z, in->x, N, GRADCOMP_F8E5M2, 1);
	note(r, "casts to 8 bits", 0, z, N);
	op->cast_to_f32(NULL, z, in->y, N, GRADCOMP_F16);
	note(r, "casts from f16", 0, z, bytes);
	op->fill(NULL, z, 3, N);
	op->copy(NULL, z + 5, in->x, bytes - 77);
	note(r, "fill, copy", 0, z, bytes);
	op->random_normal(NULL, z, N, 1, 2, 3);
	note(r, "random_normal", 0, z, bytes);
}

static void numbers(const gradcomp_operators *op, const inputs *in, results *r)
{
	double sums[2];
	float most;
	int bad[2];
	op->sum_abs(NULL, &sums[0], in->x, N, NULL);
	op->sum_squares(NULL, &sums[1], in->x, N, NULL);
	note(r, "sums", 1, sums, sizeof sums);
	op->absmax(NULL, &most, in->x, N, NULL);
	note(r, "absmax", 0, &most, sizeof most);
	op->nonfinite(NULL, in->x, N, &bad[0]);
	float kept = in->x[N - 3];
	in->x[N - 3] = test_bits(0x7fc00000);
	op->nonfinite(NULL, in->x, N, &bad[1]);
	in->x[N - 3] = kept;
	ok(!bad[0] && bad[1], "a NaN in the last part is found, and only then");
}

static void products(const gradcomp_operators *op, const inputs *in, float *z, results *r)
{
	enum { SMALL = 20, BATCH = 90 };
	float *to[BATCH];
	const float *large[BATCH], *thin[BATCH];
	sdk_product_mq(op, NULL, z, in->x, in->Q, ROWS, COLUMNS, RANK, NULL);
	note(r, "product_mq", 1, z, ROWS * RANK * sizeof *z);
	float *X = z, *E = z + (size_t)ROWS * COLUMNS;
	memset(z, 0, N * sizeof *z);
	memcpy(X, in->x, ROWS * COLUMNS * sizeof *X);
	sdk_low_rank_finish(op, NULL, X, NULL, in->P, NULL, in->Q, ROWS, COLUMNS, RANK);
	note(r, "low_rank_finish", 0, X, ROWS * COLUMNS * sizeof *X);
	memcpy(X, in->x, ROWS / 2 * COLUMNS * sizeof *X);
	sdk_low_rank_finish(op, NULL, X, E - (size_t)ROWS / 2 * COLUMNS, in->P, in->L, in->Q, ROWS / 2, COLUMNS, RANK);
	note(r, "low_rank_finish with an error", 1, z, N * sizeof *z);
	memset(z, 0, N * sizeof *z);
	for (size_t b = 0; b < BATCH; b++) {
		to[b] = z + b * SMALL * RANK;
		large[b] = in->x + b * SMALL * 131;
		thin[b] = in->Q + b;
	}
	op->product_mq_batch(NULL, to, large, thin, BATCH, SMALL, 131, RANK, NULL);
	op->orthonormalise_split(NULL, to, BATCH, SMALL, RANK, NULL);
	note(r, "product_mq_batch, orthonormalise_split", 1, z, BATCH * SMALL * RANK * sizeof *z);
	for (size_t b = 0; b < BATCH; b++)
		to[b] = z + b * 131 * RANK;
	op->product_mtp_batch(NULL, to, large, thin, BATCH, SMALL, 131, RANK, NULL);
	note(r, "product_mtp_batch", 1, z, BATCH * 131 * RANK * sizeof *z);
}

static void codes(const gradcomp_operators *op, const inputs *in, float *z, results *r)
{
	static const unsigned all_bits[] = {8, 4, 2};
	static const size_t segments[] = {N, 1000, 2 * OPERATOR_PART + 7};
	static uint32_t out[2 * N];
	static float pairs[2 * N];
	float scale = 3;
	int fault = 0;
	for (unsigned k = 0; k < 3; k++) {
		gradcomp_quantiser q = {
			sizeof q, all_bits[k], (1u << (all_bits[k] - 1)) - 1, k == 2 ? 65536 : 96, k % 2, 1, NULL, 5, 6,
			7};
		op->quantise(NULL, out, in->x, N, &q);
		note(r, "quantise", k % 2, out, op->quantised_bytes(&q, N));
		memcpy(z, in->y, N * sizeof *z);
		op->dequantise_add(NULL, z, 0.5f, out, N, &q);
		op->dequantise_error(NULL, z, z, out, N, &q);
		note(r, "dequantise", k % 2, z, N * sizeof *z);
	}
	for (unsigned k = 0; k < 3; k++) {
		size_t words = op->sign_words(N, segments[k]), runs = (N + segments[k] - 1) / segments[k];
		op->sign_pack(NULL, out, in->x, N, segments[k]);
		note(r, "sign_pack", 0, out, words * 4);
		op->sign_means(NULL, pairs, in->x, N, segments[k]);
		note(r, "sign_means", 1, pairs, 8 * runs);
		memcpy(z, in->y, N * sizeof *z);
		op->sign_add(NULL, z, 0.5f, out, pairs, N, segments[k]);
		op->sign_error(NULL, z, z, out, pairs, N, segments[k]);
		note(r, "sign_add, sign_error", 0, z, N * sizeof *z);
	}
	op->ternary_pack(NULL, (uint8_t *)out, in->x, N, &scale, 1, 2, 3);
	note(r, "ternary_pack", 0, out, (N + 4) / 5);
	memcpy(z, in->y, N * sizeof *z);
	op->ternary_add(NULL, z, 0.5f, (uint8_t *)out, &scale, N, &fault);
	((uint8_t *)out)[(N - 1) / 5] = 255;
	int last = 0;
	op->ternary_add(NULL, z, 0.5f, (uint8_t *)out, &scale, N, &last);
	note(r, "ternary_add", 0, z, N * sizeof *z);
	ok(!fault && last, "a byte above 242 in the last part is found, and only then");
}

static results everything(const gradcomp_operators *op, const inputs *in)
{
	results r = {.count = 0};
	float *z = test_alloc(N, 3);
	elements(op, in, z, &r);
	numbers(op, in, &r);
	products(op, in, z, &r);
	codes(op, in, z, &r);
	ok(test_free(z, N, 3), "nothing written outside");
	return r;
}

static const gradcomp_operators *best_single(void)
{
	static const char *const names[] = {"avx512", "avx2", "portable"};
	int i = 0;
	while (i < 2 && !operators_cpu_variant(names[i]))
		i++;
	return operators_cpu_variant(names[i]);
}

static int equal(const results *a, const results *b, int local_too)
{
	int same = a->count == b->count;
	for (int i = 0; i < a->count; i++)
		if (a->of[i] != b->of[i] && (local_too || !a->local[i])) {
			printf("# %s differs\n", a->name[i]);
			same = 0;
		}
	return same;
}

static void bits(const inputs *in)
{
	gradcomp_error err;
	results none = everything(operators_cpu(), in), single = everything(best_single(), in);
	ok(equal(&none, &single, 0), "without threads: what is REPLICATED as without parts");
	for (int n = 1; n <= 5; n++) {
		is_int(operator_threads_start(n, &err), GRADCOMP_OK, "%d threads start", n);
		results some = everything(operators_cpu(), in);
		ok(equal(&some, &none, 1), "%d threads: the same bits, of all operators", n);
		operator_threads_stop();
	}
}

/* Each part once, whoever calls. */
typedef struct counted {
	atomic_int calls[200];
} counted;

static void count_part(void *arg, size_t part)
{
	atomic_fetch_add(&((counted *)arg)->calls[part], 1);
}

static atomic_int wrong;

static void *caller(void *arg)
{
	(void)arg;
	for (int k = 0; k < 2000; k++) {
		counted c = {.calls = {0}};
		size_t parts = (size_t)k % 200;
		operator_threads_run(count_part, &c, parts);
		for (size_t i = 0; i < 200; i++)
			if (c.calls[i] != (i < parts))
				atomic_fetch_add(&wrong, 1);
	}
	return NULL;
}

static void callers(void)
{
	gradcomp_error err;
	pthread_t t[3];
	operator_threads_start(4, &err);
	operator_threads_start(2, &err);
	for (int i = 0; i < 3; i++)
		pthread_create(&t[i], NULL, caller, NULL);
	/* The second of two jobs ends under way, and a third begins. */
	operator_threads_stop();
	operator_threads_start(3, &err);
	operator_threads_stop();
	for (int i = 0; i < 3; i++)
		pthread_join(t[i], NULL);
	operator_threads_stop();
	is_int(wrong, 0, "three callers at once: every part is run once");
	for (int k = 0; k < 50; k++) {
		operator_threads_start(1 + k % 4, &err);
		pthread_create(&t[0], NULL, caller, NULL);
		operator_threads_stop();
		pthread_join(t[0], NULL);
	}
	is_int(wrong, 0, "also when the pool ends under a caller");
	operator_threads_stop();
	caller(NULL);
	is_int(wrong, 0, "one stop too many does no harm");
}

static void forked(void)
{
	gradcomp_error err;
	int status = -1;
	operator_threads_start(3, &err);
	pid_t child = fork();
	if (!child) {
		atomic_store(&wrong, 0);
		caller(NULL);
		operator_threads_stop();
		_exit(wrong != 0);
	}
	ok(child > 0 && waitpid(child, &status, 0) == child && status == 0, "a child of fork() works alone");
	caller(NULL);
	is_int(wrong, 0, "its parent goes on");
	operator_threads_stop();
}

static void settings(void)
{
	static const struct {
		const char *text;
		int threads;
	} cases[] = {{"1", 1}, {"64", 64}, {"0", 0},  {"65", 0},   {"-1", 0},
	             {"", 0},  {"4x", 0},  {" 4", 0}, {"AUTO", 0}, {"99999999999999999999", 0}};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		is_int(thread_pool_parse(cases[i].text), cases[i].threads, "threads=%s", cases[i].text);
	unsetenv("SLURM_CPUS_PER_TASK");
	is_int(thread_pool_parse("auto"), 1, "auto outside of Slurm is 1");
	setenv("SLURM_CPUS_PER_TASK", "1", 1);
	is_int(thread_pool_parse("auto"), 1, "auto is what Slurm gives a task");
	setenv("SLURM_CPUS_PER_TASK", "100000", 1);
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	int n = thread_pool_parse("auto");
	ok(n >= 1 && n <= cpus, "but not more than there are: %d", n);
	setenv("SLURM_CPUS_PER_TASK", "garbage", 1);
	is_int(thread_pool_parse("auto"), 1, "auto of garbage is 1");
}

int main(void)
{
	test_seed();
	inputs in = {test_alloc(N, 1), test_alloc(N, 2), test_alloc(ROWS * RANK, 0),
	             test_alloc(COLUMNS * RANK + 100, 0), test_alloc(COLUMNS * RANK, 0)};
	for (size_t i = 0; i < N; i++)
		in.x[i] = test_normal(), in.y[i] = test_normal();
	for (size_t i = 0; i < ROWS * RANK; i++)
		in.P[i] = test_normal();
	for (size_t i = 0; i < COLUMNS * RANK; i++)
		in.Q[i] = in.L[i] = test_normal();
	for (size_t i = 0; i < 100; i++)
		in.Q[COLUMNS * RANK + i] = 1;
	bits(&in);
	callers();
	forked();
	settings();
	ok(test_free(in.x, N, 1) && test_free(in.y, N, 2) && test_free(in.P, ROWS * RANK, 0) &&
	           test_free(in.Q, COLUMNS * RANK + 100, 0) && test_free(in.L, COLUMNS * RANK, 0),
	   "no input is written behind");
	return done_testing();
}
