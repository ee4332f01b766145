/* Work that all ranks would do alike: the same bits shared and not, whatever the sizes; how
 * pieces are cut; the decision by times that the test makes up; a rank that dies. */
#include "job/parallel_internal.h"
#include "tests/support/process_ranks.h"
#include "tests/support/thread_ranks.h"

#include <math.h>

/* A rank's own clock: work makes it go on, and so does a gather, which is what lies between
 * two looks without work. */
static _Thread_local double time_now, tick;
static _Thread_local int worked;

static double made_up(void)
{
	if (!worked)
		time_now += tick;
	worked = 0;
	return time_now;
}

struct run {
	int shape;           /* the pieces' */
	double work, gather; /* seconds, by the made-up clock */
	int uneven;          /* ranks have other clocks */
	int shared[MAX_RANKS], failed[MAX_RANKS], did[MAX_RANKS];
	char reason[256];
};

struct task {
	float **out;
	const uint64_t *bytes;
	int step, did;
	double seconds;
};

/* Something whose bits depend on everything before: a step of momentum on a piece. */
static void momentum(void *ctx, uint32_t i)
{
	struct task *t = ctx;
	float *x = t->out[i];
	for (uint64_t k = 0; k < t->bytes[i] / sizeof *x; k++)
		x[k] = 0.9f * x[k] + sinf((float)(i + k) * 0.37f + (float)t->step);
	t->did++;
	worked = 1;
	time_now += t->seconds * (i + 1);
}

static uint32_t make_bytes(int shape, uint64_t bytes[64])
{
	static const uint64_t few[] = {4096, 0, 4},
			      many[] = {4, 40000, 0, 0, 12, 1236, 80, 36, 9000, 4, 4, 4, 700, 0, 52, 8};
	uint32_t n = shape == 0 ? 3 : shape == 1 ? 16 : shape == 2 ? 0 : shape == 3 ? 4 : 1;
	for (uint32_t i = 0; i < n; i++)
		bytes[i] = shape == 0 ? few[i] : shape == 1 ? many[i] : shape == 3 ? 0 : 40004;
	return n;
}

/* 210 calls: the times at first, what was decided, another look. `apart`: pieces that do not
 * lie together. */
static void same_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	gradcomp_parallel *p = NULL;
	uint64_t bytes[64];
	uint32_t n = make_bytes(run->shape, bytes);
	(void)P;
	for (int apart = 0; apart < 2; apart++) {
		float *alone[64], *out[64], *whole = calloc(1, 100000), *next = whole;
		struct task one = {.out = alone, .bytes = bytes},
			    all = {.out = out, .bytes = bytes, .seconds = run->work * (run->uneven ? rank + 1 : 1)};
		run->failed[rank] |= gradcomp_parallel_create(gradcomp_job_world(job), bytes, n, &p, &err) != 0;
		for (uint32_t i = 0; i < n; i++) {
			alone[i] = calloc(1, bytes[i] + 1);
			out[i] = next;
			next += bytes[i] / sizeof *next + (apart ? 3 : 0);
		}
		if (p)
			p->now = made_up;
		tick = run->gather * (run->uneven ? P - rank : 1);
		for (int s = 0; s < 210 && !run->failed[rank]; s++) {
			one.step = all.step = s;
			for (uint32_t i = 0; i < n; i++)
				momentum(&one, i);
			all.did = 0;
			run->failed[rank] |= gradcomp_parallel_apply(p, (void *const *)out, momentum, &all, &err) != 0;
			for (uint32_t i = 0; i < n; i++)
				run->failed[rank] |= memcmp(alone[i], out[i], bytes[i]) != 0;
		}
		run->did[rank] = all.did;
		run->shared[rank] = p ? p->shared : -1;
		if (p && !rank)
			memcpy(run->reason, gradcomp_parallel_reason(p), sizeof run->reason);
		gradcomp_parallel_free(p);
		for (uint32_t i = 0; i < n; i++)
			free(alone[i]);
		free(whole);
	}
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
}

static void check(int P, const char *const *settings, struct run run, int want)
{
	int failed = 0, did = 0;
	uint64_t bytes[64];
	int n = (int)make_bytes(run.shape, bytes);
	run_ranks(P, settings, same_body, &run);
	for (int r = 0; r < P; r++) {
		failed |= run.failed[r] || run.shared[r] != want;
		did += run.did[r];
	}
	ok(!failed && did == (want ? n : n * P),
	   "%d ranks, %d pieces, %g s of work, %g s to gather%s: the same bits, %s", P, n, run.work, run.gather,
	   run.uneven ? ", uneven clocks" : "", want ? "shared" : "not shared");
	if (failed || did != (want ? n : n * P))
		printf("# %d of the calls' pieces were done\n# %s\n", did, run.reason);
	like(run.reason, P == 1 ? "one rank" : want ? "shared: " : "not shared: ", "which is said");
}

/* All cuts of up to eight pieces, by trying. */
static double best_cut(const double *weight, uint32_t n, uint32_t runs)
{
	double least = INFINITY, sum = 0;
	if (runs == 1 || !n) {
		for (uint32_t i = 0; i < n; i++)
			sum += weight[i];
		return sum;
	}
	for (uint32_t i = 0; i <= n; i++) {
		double rest = best_cut(weight + i, n - i, runs - 1);
		if (fmax(sum, rest) < least)
			least = fmax(sum, rest);
		if (i < n)
			sum += weight[i];
	}
	return least;
}

static void cuts(void)
{
	uint64_t seed = 12345;
	int bad = 0, tried = 0;
	for (int k = 0; k < 2000; k++) {
		double weight[8] = {0};
		uint32_t cut[8], n = (uint32_t)(k % 9), runs = 1 + (uint32_t)(k / 9) % 6;
		for (uint32_t i = 0; i < n; i++) {
			seed = seed * 6364136223846793005u + 1442695040888963407u;
			weight[i] = seed >> 62 ? (double)(seed >> 40) / 1e6 : 0;
		}
		double heaviest = parallel_cut(weight, n, runs, cut), real = 0;
		bad += cut[0] != 0 || cut[runs] != n;
		for (uint32_t r = 0; r < runs; r++) {
			double sum = 0;
			bad += cut[r + 1] < cut[r];
			for (uint32_t i = cut[r]; i < cut[r + 1]; i++)
				sum += weight[i];
			real = fmax(real, sum);
		}
		bad += real != heaviest || fabs(heaviest - best_cut(weight, n, runs)) > 1e-12 * (heaviest + 1);
		tried++;
	}
	ok(!bad && tried == 2000, "runs of pieces are the best there are, in %d cases", tried);
}

static void misuse_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_parallel *p;
	uint64_t bytes[2] = {4, rank == P - 1 ? 8 : 12};
	char want[32];
	(void)arg;
	is_int(gradcomp_parallel_create(NULL, bytes, 2, &p, &err), GRADCOMP_ERR_INVALID, "no group");
	is_int(gradcomp_parallel_create(w, NULL, 2, &p, &err), GRADCOMP_ERR_INVALID, "no sizes");
	is_int(gradcomp_parallel_create(w, bytes, 2, &p, &err), GRADCOMP_ERR_MISMATCH,
	       "pieces that differ between ranks");
	snprintf(want, sizeof want, "rank %d on ", P - 1);
	like(err.text, want, "name the rank");
	bytes[1] = rank ? 8 : UINT64_MAX;
	is_int(gradcomp_parallel_create(w, bytes, 2, &p, &err), rank ? GRADCOMP_ERR_PEER : GRADCOMP_ERR_RANGE,
	       "one rank's absurd piece is everybody's error");
	bytes[1] = 8;
	is_int(gradcomp_parallel_create(w, bytes, 2, &p, &err), GRADCOMP_OK, "after all of that it works");
	is_int(gradcomp_job_free(job, &err), GRADCOMP_ERR_STATE, "the job is in use");
	gradcomp_parallel_free(p);
	gradcomp_parallel_free(NULL);
}

static void idle_piece(void *ctx, uint32_t i)
{
	(void)ctx, (void)i;
}

/* Rank 1 gives no memory: the job ends, since the others wait for its piece. */
static void nowhere_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_status *st = arg;
	gradcomp_error err = {0};
	gradcomp_parallel *p;
	uint64_t bytes[2] = {4, 4};
	float x[2] = {0};
	void *out[2] = {&x[0], &x[1]}, *none[2] = {NULL, NULL};
	(void)P;
	st[rank] = gradcomp_parallel_create(gradcomp_job_world(job), bytes, 2, &p, &err);
	if (!st[rank])
		st[rank] = gradcomp_parallel_apply(p, rank == 1 ? none : out, idle_piece, NULL, &err);
	if (!strstr(err.text, "piece 0 makes 4 bytes, and out[0] is NULL"))
		st[rank] = 1;
	gradcomp_parallel_free(p);
}

/* Rank 1 dies in the middle of its share. */
static void die_piece(void *ctx, uint32_t i)
{
	(void)i;
	if (*(int *)ctx)
		_exit(3);
}

static void die_body(gradcomp_job *job, int rank, process_board *board, void *room)
{
	gradcomp_error err = {0};
	gradcomp_parallel *p;
	const uint64_t bytes[4] = {4, 4, 4, 4};
	float x[4] = {0};
	void *out[4] = {&x[0], &x[1], &x[2], &x[3]};
	int die = 0;
	gradcomp_status st = gradcomp_parallel_create(gradcomp_job_world(job), bytes, 4, &p, &err);
	(void)board;
	for (int s = 0; !st && s < 3; s++) {
		die = rank == 1 && s == 1;
		st = gradcomp_parallel_apply(p, out, die_piece, &die, &err);
	}
	*(int *)room = st && strstr(err.text, "rank 1");
	if (st)
		*(int *)room &= gradcomp_parallel_apply(p, out, die_piece, &die, &err) != 0;
	gradcomp_parallel_free(p);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	cuts();
	/* Seconds are of the made-up clock, so the outcome does not depend on this machine. A
	 * piece of number i takes i + 1 times `work`. */
	for (int P = 1; P <= 5; P++)
		for (int shape = 0; shape < 2; shape++) {
			check(P, settings, (struct run){.shape = shape, .work = 1, .gather = 1e-3}, P > 1);
			check(P, settings, (struct run){.shape = shape, .work = 1e-6, .gather = 1}, 0);
		}
	check(3, settings, (struct run){.shape = 1, .work = 1, .gather = 1e-3, .uneven = 1}, 1);
	check(3, settings, (struct run){.shape = 0, .work = 0, .gather = 0}, 0);
	check(3, settings, (struct run){.shape = 2, .work = 1, .gather = 1}, 0);
	check(3, settings, (struct run){.shape = 3, .work = 1, .gather = 1e-3}, 1);
	check(3, settings, (struct run){.shape = 4, .work = 1, .gather = 1e-3}, 0);
	run_ranks(3, settings, misuse_body, NULL);
	gradcomp_status nowhere[3];
	rank_arg left[3];
	const char *const *each[3] = {settings, settings, settings};
	run_ranks_with(3, each, left, nowhere_body, nowhere);
	for (int r = 0; r < 3; r++)
		ok(nowhere[r] < 0, "a piece that goes nowhere: rank %d hears of it", r);

	process_board *b = run_processes(3, settings, die_body, sizeof(int));
	for (int r = 0; b && r < 3; r++)
		ok(r == 1 ? WIFEXITED(b->slot[r].status) && WEXITSTATUS(b->slot[r].status) == 3
		          : *(int *)process_room(b, r),
		   r == 1 ? "a rank dies in its share" : "rank %d ends with its name", r);
	if (b)
		end_processes(b);
	else
		ok(0, "ranks start");
	return done_testing();
}
