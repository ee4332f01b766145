/* A job's whole life - joining, a reducer with its steps, a saved and a loaded state, a coder
 * likewise, groups, leaving - with every allocation of it failing in turn, and connections that
 * break: everybody hears of it, in words, and nothing is kept. With calls that are only
 * disturbed nothing changes. */
#include "tests/support/fault_run.h"

#include "gradcomp/coder.h"
#include "tests/support/thread_ranks.h"

#include "tests/support/operator_input.h"
#include "bootstrap/bootstrap.h"

enum { TENSORS = 3, ROOM = 1 << 20, TOGETHER = 5 };
static const uint64_t dims[TENSORS][2] = {{40, 30}, {30, 1}, {64, 17}};
static float gradient[TENSORS][1200];
static unsigned char saved[ROOM];
static const char *compressor, *allow;
static unsigned seed;
static int all; /* every point, not only some */

/* The store of ranks that are processes. */
static struct key_store {
	atomic_int there[BOARD_RANKS];
	char value[BOARD_RANKS][BOOTSTRAP_MAX];
	uint64_t result[BOARD_RANKS];
} * stores[TOGETHER];
static struct key_store *keys;

static int set(void *ctx, const char *key, const void *value, size_t bytes)
{
	int r = atoi(strchr(key, '/') + 1);
	(void)ctx;
	if (!strncmp(key, "gradcomp/heard/", 15))
		return 0;
	memcpy(keys->value[r], value, bytes);
	keys->value[r][bytes] = 0;
	atomic_store(&keys->there[r], 1);
	return 0;
}

static long get(void *ctx, const char *key, void *value, size_t capacity, int timeout_ms)
{
	int r = atoi(strchr(key, '/') + 1);
	double until = board_now() + 1e-3 * timeout_ms;
	size_t n;
	(void)ctx;
	if (!strncmp(key, "gradcomp/heard/", 15))
		return -1;
	while (!atomic_load(&keys->there[r])) {
		if (board_now() > until)
			return -1;
		usleep(200);
	}
	n = strlen(keys->value[r]);
	memcpy(value, keys->value[r], n < capacity ? n : capacity);
	return (long)n;
}

static gradcomp_status step(gradcomp_reducer *red, int rank, int k, uint64_t *mark, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = 0; t < TENSORS; t++)
		for (uint64_t i = 0; i < dims[t][0] * dims[t][1]; i++)
			gradient[t][i] = (float)((int)((i * 7 + (uint64_t)(rank * 5 + k * 3 + t)) % 23) - 11);
	for (int t = TENSORS - 1; !st && t >= 0; t--)
		st = gradcomp_reducer_ready(red, (uint32_t)t, gradient[t], err);
	if (!st)
		st = gradcomp_reducer_wait(red, err);
	for (int t = 0; !st && t < TENSORS; t++)
		for (uint64_t i = 0; i < dims[t][0] * dims[t][1]; i++) {
			uint32_t bits;

			memcpy(&bits, &gradient[t][i], 4);
			*mark = (*mark ^ bits) * 0x9e3779b97f4a7c15u;
		}
	return st;
}

/* A reduction and a gather in flight, and both again from the state that was before. */
static gradcomp_status code(gradcomp_group *world, int P, fault_run *t, gradcomp_error *err)
{
	enum { EACH = 500 };
	static float in[2][BOARD_RANKS * EACH], out[2][2][BOARD_RANKS * EACH];
	const gradcomp_coder_options o = {.struct_size = sizeof o, .seed = 5};
	const int rank = gradcomp_group_rank(world);
	uint64_t counts[BOARD_RANKS], bytes = 0;
	gradcomp_coder_request *q[2] = {NULL, NULL};
	gradcomp_coder *k = NULL;
	gradcomp_status st = gradcomp_coder_create(world, "block:bits=4,rounding=stochastic", &o, &k, err), waited;

	for (int r = 0; r < P; r++)
		counts[r] = EACH - (uint64_t)r;
	for (int again = 0; !st && again < 2; again++) {
		st = again ? gradcomp_coder_load(k, saved, bytes, err)
		           : gradcomp_coder_save(k, saved, sizeof saved, &bytes, err);
		for (int i = 0; i < P * EACH; i++)
			in[0][i] = in[1][i] = (float)((i * 7 + rank) % 31 - 15);
		if (!st)
			st = gradcomp_coder_reduce_scatter_start(k, in[0], out[again][0], counts, GRADCOMP_F32, 0.5, 1,
			                                         &q[0], err);
		if (!st)
			st = gradcomp_coder_all_gather_start(k, in[1], out[again][1], counts, GRADCOMP_BF16, &q[1],
			                                     err);
		for (int i = 0; i < 2; i++, q[i - 1] = NULL)
			if ((waited = gradcomp_coder_wait(q[i], st ? NULL : err)) && !st)
				st = waited;
	}
	t->wrong[rank] += !st && memcmp(out[0], out[1], sizeof out[0]) != 0;
	gradcomp_coder_free(k);
	return st;
}

/* Steps, with a checkpoint in between, and the plain collectives on a part of the ranks. */
static gradcomp_status work(gradcomp_job *job, fault_run *t, int rank, int P, gradcomp_error *err)
{
	gradcomp_group *world = gradcomp_job_world(job), *half = NULL;
	gradcomp_reducer_options o = {
		.struct_size = sizeof o, .compressor = compressor, .bucket_bytes = 5000, .seed = 3};
	gradcomp_tensor_desc desc[TENSORS] = {
		{"a", dims[0], 2, GRADCOMP_F32}, {"b", dims[1], 1, GRADCOMP_F32}, {"c", dims[2], 2, GRADCOMP_F32}};
	gradcomp_reducer *red = NULL;
	uint64_t bytes = 0, mark = 0, twice = 0, counts[BOARD_RANKS] = {0};
	float x[4 * BOARD_RANKS] = {0};
	gradcomp_status st = gradcomp_reducer_create(world, desc, TENSORS, &o, &red, err);
	for (int k = 0; !st && k < 2; k++)
		st = step(red, rank, k, &mark, err);
	if (!st)
		st = gradcomp_reducer_save(red, saved, sizeof saved, &bytes, err);
	if (!st)
		st = step(red, rank, 2, &mark, err);
	if (!st)
		st = gradcomp_reducer_load(red, saved, bytes, err);
	/* The same step again from the same state. */
	if (!st)
		st = gradcomp_reducer_save(red, saved, sizeof saved, &bytes, err);
	if (!st)
		st = step(red, rank, 2, &twice, err);
	/* And what all ranks share. */
	if (!st)
		st = gradcomp_reducer_save_shared(red, saved, sizeof saved, &bytes, err);
	if (!st)
		st = gradcomp_reducer_load(red, saved, bytes, err);
	if (!st)
		st = step(red, rank, 3, &twice, err);
	gradcomp_reducer_free(red);
	keys->result[rank] = mark ^ twice << 1;
	if (!st && !strcmp(compressor, "block"))
		st = code(world, P, t, err);
	if (!st)
		st = gradcomp_group_split(world, rank % 2, -rank, &half, err);
	for (int r = 0; half && r < gradcomp_group_nranks(half); r++)
		counts[r] = 1;
	x[0] = (float)(rank + 1);
	if (half)
		st = gradcomp_allgather(half, x, x + 1, counts, GRADCOMP_F32, err);
	for (int r = 0; half && !st && r < gradcomp_group_nranks(half); r++)
		t->wrong[rank] += x[1 + r] != (float)(gradcomp_group_world_rank(half, r) + 1);
	gradcomp_group_free(half);
	x[0] = (float)(rank + 1);
	if (!st)
		st = gradcomp_allreduce(world, x, 1, GRADCOMP_F32, GRADCOMP_SUM, err);
	t->wrong[rank] += !st && x[0] != (float)(P * (P + 1) / 2);
	return st;
}

static void run_rank(board *b, int rank)
{
	fault_run *t = fault_run_of(b);
	char over[60];
	const char *settings[] = {plugin_path_setting(),
	                          "gradcomp.log=error",
	                          "transport.timeout=3",
	                          "transport.wait_timeout=6",
	                          "operators.threads=1",
	                          over,
	                          NULL};
	gradcomp_store store = {.struct_size = sizeof store, .rank = rank, .nranks = b->n, .set = set, .get = get};
	gradcomp_job_options o = {.struct_size = sizeof o, .store = &store, .settings = settings};
	gradcomp_job *job;
	snprintf(over, sizeof over, "transport.allow=%s", allow);
	b->started[rank] = gradcomp_job_create(&o, &job, &b->start_error[rank]);
	if (b->started[rank])
		return;
	if (!t->joins)
		fault_run_begin(b, rank);
	b->status[rank] = work(job, t, rank, b->n, &b->error[rank]);
	/* A rank that has seen everybody leave need not hear of a connection that breaks then. */
	if (strstr(t->faults, "reset"))
		inject_off();
	b->stopped[rank] = gradcomp_job_free(job, &b->stop_error[rank]);
}

static board *new_run(int P, const char *faults, int who, int joins, int k)
{
	board *b = board_new(P);
	fault_run *t = fault_run_new(b);
	b->run_rank = run_rank;
	t->seed = seed;
	t->who = who;
	t->joins = joins;
	snprintf(t->faults, sizeof t->faults, "%s", faults);
	keys = stores[k];
	memset(keys, 0, sizeof *keys);
	return b;
}

static int judged(board *b, const struct key_store *m, int may_fail)
{
	const char *why;
	/* Rank 0 alone makes the report, when all is over: nobody else need know. */
	if (b->stopped[0] && may_fail && !b->status[0] && strstr(b->stop_error[0].text, "report"))
		b->stopped[0] = GRADCOMP_OK;
	why = fault_run_check(b, may_fail);

	for (int r = 1; !why && r < b->n; r++)
		if (!fault_run_failed(b, 0) && m->result[r] != m->result[0])
			why = "ranks differ";
	if (why)
		fault_run_show(b, why);
	return !why;
}

static void disturbed(int P, const char *faults)
{
	board *b = new_run(P, faults, -1, 1, 0);
	int good;
	fault_run_start(b);
	fault_run_finish(b);
	good = judged(b, stores[0], 0);
	tap_tried(fault_run_seen(b).faults, "injected faults");
	ok(good && (!*faults || fault_run_seen(b).faults), "%s, %s, %d ranks: right with %s (%lu faults)", compressor,
	   allow, P, *faults ? faults : "none", fault_run_seen(b).faults);
	fault_run_free(b);
}

static void broken(int P, const char *kind, int joins, int loads, unsigned long from, unsigned long step)
{
	int good = 1, runs = 0, hit = 0, failed = 0, over = 0;
	double longest = 0;
	board *b[TOGETHER];
	for (unsigned long n = from; good && !over;) {
		for (int k = 0; k < TOGETHER; k++, n += step) {
			char text[40];

			snprintf(text, sizeof text, "%s=%lu", kind, n);
			b[k] = new_run(P, text, (int)(n / step) % P, joins, k);
			fault_run_of(b[k])->keeps = loads;
			fault_run_start(b[k]);
		}
		for (int k = 0; k < TOGETHER; k++) {
			fault_run_finish(b[k]);
			good &= judged(b[k], stores[k], 1);
			runs++;
			hit += fault_run_seen(b[k]).faults != 0;
			over |= !fault_run_seen(b[k]).faults;
			failed += fault_run_failed(b[k], 0) != 0;
			longest = fault_run_of(b[k])->seconds > longest ? fault_run_of(b[k])->seconds : longest;
			fault_run_free(b[k]);
		}
	}
	tap_tried((unsigned long)hit, "injected faults");
	ok(good && hit, "%s, %s, %d ranks%s: %s, %d of %d runs hit, %d failed, the longest took %.2f s", compressor,
	   allow, P, joins ? ", from the start" : "", kind, hit, runs, failed, longest);
}

int main(void)
{
	static const char *const compressors[] = {"none", "topk:density=0.1", "powersgd:rank=2", "block"};
	char path[4300];
	gradcomp_error err;
	test_seed();
	seed = (unsigned)(test_random() % 100000);
	all = getenv("TEST_ALL") != NULL;
	for (int k = 0; k < TOGETHER; k++) {
		stores[k] = mmap(NULL, sizeof *stores[k], PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
		if (stores[k] == MAP_FAILED)
			abort();
	}
	/* It is so the first time in a process, with plugins still to be loaded. */
	compressor = compressors[1];
	allow = "shm,tcp";
	broken(1, "alloc", 1, 1, all ? 1 : 1 + seed % 5, all ? 1 : 5);
	snprintf(path, sizeof path, "%s", strchr(plugin_path_setting(), '=') + 1);
	setenv("GRADCOMP_PLUGIN_PATH", path, 1);
	for (size_t c = 0; c < sizeof compressors / sizeof compressors[0]; c++) {
		compressor = compressors[c];
		if (gradcomp_spec_check(compressor, NULL, &err)) {
			ok(0, "%s: %s", compressor, err.text);
			continue;
		}
		for (int a = 0; a < 2; a++) {
			allow = a ? "tcp" : "shm";
			disturbed(3, "");
			disturbed(3, a ? "short=40;eagain=30;eintr=20;delay=2;delay_us=300"
			               : "eagain=20;eintr=20;delay=2;delay_us=300");
			if (all || c % 2 == (size_t)a)
				broken(2, "reset", 0, 0, 1, all ? 1 : a ? 17 + seed % 9 : 2);
			broken(3, "alloc", 0, 0, all ? 1 : 1 + (seed + (unsigned)a) % 7, all ? 1 : 7);
		}
		broken(1, "alloc", 1, 0, all ? 1 : 1 + seed % 17, all ? 1 : 17);
		disturbed(3, "");
	}
	/* While others join: those who wait for the one that cannot are told, or miss it. */
	broken(2, "alloc", 1, 0, all ? 1 : 1 + seed % 37, all ? 1 : 37);
	return done_testing();
}
