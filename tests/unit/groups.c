/* Groups: who is in them and in which order, several at work at once, from several
 * threads, on several channels; splits of splits, very many of them, and wrong ones. */
#include "tests/support/small_model.h"
#include "tests/support/dir_entries.h"

#include <limits.h>
#include <math.h>

enum { P = 8 };

static int sum_is(gradcomp_group *g, int64_t mine, int64_t want, gradcomp_error *err)
{
	return !gradcomp_allreduce(g, &mine, 1, GRADCOMP_I64, GRADCOMP_SUM, err) && mine == want;
}

/* Checks what a member is to find: the world ranks of its group, in order, -1 at the end. */
static int group_is(gradcomp_group *g, int rank, const int *want)
{
	int n = 0, me = -1;
	for (; want[n] >= 0; n++) {
		if (want[n] == rank)
			me = n;
		if (gradcomp_group_world_rank(g, n) != want[n])
			return 0;
	}
	return gradcomp_group_nranks(g) == n && gradcomp_group_rank(g) == me && gradcomp_group_world_rank(g, n) == -1 &&
	       gradcomp_group_world_rank(g, -1) == -1;
}

static void order_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	static const int keys[P] = {0, INT_MAX, -5, INT_MIN, 0, 7, 7, -5};
	static const int by_key[] = {3, 2, 7, 0, 4, 5, 6, 1, -1};
	static const int colours[P] = {INT_MAX, 0, -1, 0, INT_MAX, 3, -1, 0};
	static const int zeroes[] = {7, 3, 1, -1}, highest[] = {4, 0, -1}, alone[] = {5, -1};
	gradcomp_group *world = gradcomp_job_world(job), *g, *inner;
	gradcomp_error err = {0};
	(void)nranks, (void)arg;
	ok(!gradcomp_group_split(world, 0, keys[rank], &g, &err) && group_is(g, rank, by_key) &&
	           sum_is(g, rank, 28, &err),
	   "rank %d: ordered by key, equal keys by rank", rank);
	gradcomp_status st = gradcomp_group_split(world, colours[rank], -rank, &inner, &err);
	const int *want = colours[rank] == 0 ? zeroes : colours[rank] == 3 ? alone : highest;
	ok(!st && (colours[rank] < 0 ? !inner : group_is(inner, rank, want)), "rank %d: of its colour, or in none",
	   rank);
	if (inner) {
		int64_t all = 0;
		for (int k = 0; want[k] >= 0; k++)
			all += want[k];
		ok(sum_is(inner, rank, all, &err), "rank %d: sums its group", rank);
	}
	gradcomp_group_free(inner);
	/* By places of the parent, which are not ranks of the world. */
	int at = gradcomp_group_rank(g);
	static const int halves[2][5] = {{3, 7, 4, 6, -1}, {2, 0, 5, 1, -1}};
	ok(!gradcomp_group_split(g, at % 2, 0, &inner, &err) && group_is(inner, rank, halves[at % 2]),
	   "rank %d: a split of a split keeps the parent's order", rank);
	gradcomp_group_free(g);
	ok(sum_is(inner, 1, 4, &err), "rank %d: and outlives its parent", rank);
	gradcomp_group_free(inner);
	if (err.status)
		printf("# rank %d: %s\n", rank, err.text);
}

static void created_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	static const int lists[2][4] = {{6, 1, 3, -1}, {2, 7, -1}}, wrong[] = {1, P}, twice[] = {1, 0, 1};
	gradcomp_group *world = gradcomp_job_world(job), *g[3] = {0};
	gradcomp_error err = {0};
	(void)nranks, (void)arg;
	for (int k = 0; k < 2; k++) {
		int n = 0, mine = 0, sum = 0;
		for (; lists[k][n] >= 0; n++) {
			mine |= lists[k][n] == rank;
			sum += lists[k][n];
		}
		if (!mine) {
			ok(gradcomp_group_create(world, lists[k], n, &g[0], &err) == GRADCOMP_ERR_INVALID && !g[0],
			   "rank %d: is in no group that it is not of", rank);
			continue;
		}
		/* The same list again is another group, at work at the same time. */
		for (int i = 0; i < 3; i++)
			if (gradcomp_group_create(world, lists[k], n, &g[i], &err))
				ok(0, "rank %d: %s", rank, err.text);
		ok(group_is(g[0], rank, lists[k]), "rank %d: the group has the list's order", rank);
		ok(sum_is(g[2], rank, sum, &err) && sum_is(g[0], 1, n, &err), "rank %d: sums with its members alone",
		   rank);
		gradcomp_group_free(g[0]);
		ok(sum_is(g[1], rank, sum, &err), "rank %d: also when another of the same ranks is gone", rank);
		for (int i = 1; i < 3; i++)
			gradcomp_group_free(g[i]);
	}
	if (rank != 1)
		return;
	ok(gradcomp_group_create(world, wrong, 2, &g[0], &err) == GRADCOMP_ERR_INVALID, "a rank that there is not");
	like(err.text, "ranks[1] is 8: must be 0..7", "is named");
	ok(gradcomp_group_create(world, twice, 3, &g[0], &err) == GRADCOMP_ERR_INVALID, "a rank twice");
	ok(gradcomp_group_create(world, twice, 0, &g[0], &err) == GRADCOMP_ERR_INVALID, "no rank");
}

typedef struct worker {
	gradcomp_group *g;
	int rank, kind;
	const char *compressor;
	int bad;
	gradcomp_error err;
	uint64_t print;
} worker;

enum { TENSOR, PIPELINE, DATA, KINDS, ROUNDS = 40 };

static void *work(void *arg)
{
	worker *w = arg;
	int n = gradcomp_group_nranks(w->g), me = gradcomp_group_rank(w->g);
	if (w->kind == DATA) {
		/* A reducer on the group, while its ranks are busy in other groups. */
		model m;
		w->bad = model_open(&m, w->g, w->compressor, 5000, &w->err) != 0;
		for (int step = 0; !w->bad && step < 6; step++) {
			w->bad |= model_step(&m, w->rank, step, &w->err) != 0;
			double off = 0;
			for (int t = 0; t < T && !strcmp(w->compressor, "none"); t++)
				for (uint64_t i = 0; i < numel(t); i++) {
					double mean = 0;
					for (int r = 0; r < n; r++)
						mean += gradient(gradcomp_group_world_rank(w->g, r), step, t, i) /
						        (double)n;
					off = fmax(off, fabs(m.grad[t][i] - mean));
				}
			w->bad |= off > 1e-6;
			w->print = mix(w->print ^ fingerprint(&m));
		}
		if (!w->bad)
			model_close(&m);
		return NULL;
	}
	for (int k = 0; !w->bad && k < ROUNDS; k++) {
		uint64_t count = (uint64_t)(k * k * 37 % 5003);
		int root = k % n;
		float *x = calloc(count + 1, sizeof *x);
		for (uint64_t i = 0; i < count; i++)
			x[i] = w->kind == TENSOR ? (float)(w->rank + (int)(i % 11))
			       : me == root      ? (float)(w->rank * 1000 + (int)i)
			                         : -1;
		w->bad |= w->kind == TENSOR
		                  ? gradcomp_allreduce(w->g, x, count, GRADCOMP_F32, GRADCOMP_SUM, &w->err) != 0
		                  : gradcomp_broadcast(w->g, x, count, GRADCOMP_F32, root, &w->err) != 0;
		int sum = 0, from = gradcomp_group_world_rank(w->g, root);
		for (int r = 0; r < n; r++)
			sum += gradcomp_group_world_rank(w->g, r);
		for (uint64_t i = 0; i < count; i++)
			w->bad |= x[i] != (w->kind == TENSOR ? (float)(sum + n * (int)(i % 11))
			                                     : (float)(from * 1000 + (int)i));
		w->bad |= gradcomp_barrier(w->g, &w->err) != 0;
		free(x);
	}
	return NULL;
}

static uint64_t prints[P];

/* Rank = data * 4 + pipeline * 2 + tensor. */
static void parallel_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	gradcomp_group *world = gradcomp_job_world(job);
	const int tensor = rank % 2, pipeline = rank / 2 % 2, data = rank / 4;
	const int colours[KINDS] = {data * 2 + pipeline, data * 2 + tensor, pipeline * 2 + tensor};
	gradcomp_error err = {0};
	worker w[KINDS] = {{0}};
	pthread_t threads[KINDS];
	int bad = 0;
	(void)nranks;
	for (int k = 0; k < KINDS; k++) {
		w[k] = (worker){.rank = rank, .kind = k, .compressor = arg};
		if (gradcomp_group_split(world, colours[k], 0, &w[k].g, &err)) {
			ok(0, "rank %d: %s", rank, err.text);
			return;
		}
	}
	for (int k = 0; k < KINDS; k++)
		pthread_create(&threads[k], NULL, work, &w[k]);
	for (int k = 0; k < KINDS; k++) {
		pthread_join(threads[k], NULL);
		bad |= w[k].bad || gradcomp_group_nranks(w[k].g) != 2;
		if (w[k].bad)
			printf("# rank %d, group of kind %d: %s\n", rank, k, w[k].err.text);
	}
	prints[rank] = w[DATA].print;
	ranks_wait();
	ok(!bad, "rank %d: tensor and pipeline groups at work while a reducer (%s) averages in the data group", rank,
	   (const char *)arg);
	ok(prints[rank] == prints[(rank + 4) % P], "rank %d: its data group has the same bits", rank);
	for (int k = 0; k < KINDS; k++)
		gradcomp_group_free(w[k].g);
}

static void *busy(void *arg)
{
	worker *w = arg;
	enum { N = 300001 };
	float *x = malloc(N * sizeof *x);
	for (int k = 0; !w->bad && k < 4; k++) {
		for (int i = 0; i < N; i++)
			x[i] = (float)(w->kind + 1) * (float)((i + w->rank) % 64);
		w->bad |= gradcomp_allreduce(w->g, x, N, GRADCOMP_F32, GRADCOMP_SUM, &w->err) != 0;
		for (int i = 0; i < N; i++)
			w->bad |= x[i] !=
			          (float)(w->kind + 1) * (float)(i % 64 + (i + 1) % 64 + (i + 2) % 64 + (i + 3) % 64);
	}
	free(x);
	return NULL;
}

static void channels_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	enum { GROUPS = 4 };
	worker w[GROUPS];
	pthread_t threads[GROUPS];
	gradcomp_error err = {0};
	int bad = 0;
	(void)nranks, (void)arg;
	for (int k = 0; k < GROUPS; k++) {
		w[k] = (worker){.rank = rank, .kind = k};
		bad |= gradcomp_group_split(gradcomp_job_world(job), 5, 0, &w[k].g, &err) != 0;
	}
	/* Each rank starts them in an order of its own. */
	for (int k = 0; !bad && k < GROUPS; k++)
		pthread_create(&threads[(k + rank) % GROUPS], NULL, busy, &w[(k + rank) % GROUPS]);
	for (int k = 0; !bad && k < GROUPS; k++)
		pthread_join(threads[k], NULL);
	for (int k = 0; k < GROUPS; k++) {
		bad |= w[k].bad;
		gradcomp_group_free(w[k].g);
	}
	ok(!bad, "rank %d: 4 groups of the same ranks add at once, each on its own channel", rank);
}

static void many_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	enum { SPLITS = 300 };
	gradcomp_group *world = gradcomp_job_world(job), *g = NULL, *chain[40] = {NULL};
	gradcomp_error err = {0};
	int before = 0, bad = 0;
	(void)arg;
	for (int k = 0; !bad && k < SPLITS + 20; k++) {
		if (k == 20) {
			bad |= gradcomp_barrier(world, &err) != 0;
			before = rank == 0 ? entries("/proc/self/fd") : 0;
			bad |= gradcomp_barrier(world, &err) != 0;
		}
		bad |= gradcomp_group_split(world, k % 3 ? rank % 2 : 0, k % 5 ? 0 : -rank, &g, &err) != 0;
		bad |= !sum_is(g, 1, gradcomp_group_nranks(g), &err);
		gradcomp_group_free(g);
	}
	bad |= gradcomp_barrier(world, &err) != 0;
	int after = rank == 0 ? entries("/proc/self/fd") : 0;
	bad |= gradcomp_barrier(world, &err) != 0;
	ok(!bad, "rank %d: %d groups made, used and freed, one after another%s%s", rank, SPLITS, bad ? ": " : "",
	   bad ? err.text : "");
	if (rank == 0)
		ok(after <= before + 8, "no descriptor stays with them (%d, then %d)", before, after);
	/* A split of a split of a split; freed from the outside in. */
	chain[0] = world;
	for (int k = 1; !bad && k < 40; k++) {
		bad |= gradcomp_group_split(chain[k - 1], 0, k % 2 ? -rank : rank, &chain[k], &err) != 0;
		bad |= !sum_is(chain[k], rank, (int64_t)nranks * (nranks - 1) / 2, &err);
	}
	for (int k = 1; k < 40; k++)
		gradcomp_group_free(chain[k]);
	ok(!bad, "rank %d: splits of splits, 39 deep", rank);
	/* Each alone: everything works, nothing is sent. */
	float x[3] = {1, 2, 3}, y[3] = {0};
	const uint64_t three = 3;
	bad |= gradcomp_group_split(world, rank, 0, &g, &err) != 0 || gradcomp_group_nranks(g) != 1;
	bad |= gradcomp_allreduce(g, x, 3, GRADCOMP_F32, GRADCOMP_SUM, &err) || x[2] != 3;
	bad |= gradcomp_allgather(g, x, y, &three, GRADCOMP_F32, &err) || memcmp(x, y, sizeof x);
	bad |= gradcomp_reduce_scatter(g, x, y, &three, GRADCOMP_F32, GRADCOMP_MAX, &err) || y[1] != 2;
	bad |= gradcomp_broadcast(g, x, 3, GRADCOMP_F32, 0, &err) || gradcomp_barrier(g, &err);
	model m;
	bad |= model_open(&m, g, "topk", 5000, &err) != 0;
	if (!bad) {
		bad |= model_step(&m, rank, 0, &err) != 0;
		model_close(&m);
	}
	ok(!bad, "rank %d: groups of one rank%s%s", rank, bad ? ": " : "", bad ? err.text : "");
	gradcomp_group_free(g);
}

static void wrong_body(gradcomp_job *job, int rank, int nranks, void *arg)
{
	gradcomp_group *world = gradcomp_job_world(job), *g = world;
	gradcomp_error err = {0};
	(void)nranks, (void)arg;
	is_int(gradcomp_group_split(world, rank == 2 ? -7 : 0, 0, &g, &err), GRADCOMP_ERR_INVALID,
	       "rank %d: a colour below -1 fails on all ranks", rank);
	ok(!g && strstr(err.text, "colour -7 of rank 2: must be -1 (in no group) or more"),
	   "rank %d: which says whose: %s", rank, err.text);
	ok(gradcomp_group_split(NULL, 0, 0, &g, &err) == GRADCOMP_ERR_INVALID && strstr(err.text, "group is NULL") &&
	           !g,
	   "rank %d: no group", rank);
	ok(gradcomp_group_split(world, 0, 0, NULL, &err) == GRADCOMP_ERR_INVALID && strstr(err.text, "out is NULL"),
	   "rank %d: no place for the group", rank);
	gradcomp_group_free(NULL);
	gradcomp_group_free(world);
	ok(!gradcomp_group_split(world, 1, 0, &g, &err) && sum_is(g, 1, nranks, &err), "rank %d: and the world goes on",
	   rank);
	ok(gradcomp_job_free(job, &err) == GRADCOMP_ERR_STATE, "rank %d: a job with a group left is not freed: %s",
	   rank, err.text);
	gradcomp_group_free(g);
}

int main(void)
{
	static const int two_nodes[P] = {0, 0, 0, 0, 1, 1, 1, 1};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=30", "gradcomp.log=error", NULL};
	const char *automatic[] = {settings[0], settings[1], settings[2], "gradcomp.collective=auto", NULL};
	model_seed();
	run_ranks(P, settings, order_body, NULL);
	run_ranks(P, settings, created_body, NULL);
	run_ranks(P, settings, parallel_body, "none");
	run_ranks(P, automatic, parallel_body, "topk");
	ranks_on(two_nodes);
	run_ranks(P, settings, parallel_body, "none");
	ranks_on(NULL);
	run_ranks(4, settings, channels_body, NULL);
	run_ranks(4, automatic, channels_body, NULL);
	run_ranks(4, settings, many_body, NULL);
	run_ranks(4, settings, wrong_body, NULL);
	return done_testing();
}
