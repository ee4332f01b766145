/* Reducers on several groups of one job at once, as a job has that is parallel in data, in
 * tensors and in pipeline stages: groups overlap in ranks, every reducer has a thread, a
 * compressor and a plan of its own, moved when it likes. None disturbs another. */
#include "tests/support/residuals.h"
#include "reducer/bucketing/rebucket.h"

enum { RANKS = 8, KINDS = 4, STEPS = 24 };

/* Which group of a kind a rank is in, of 2 x 2 x 2. */
static int colour(int kind, int rank)
{
	int tensor = rank >> 1 & 1, stage = rank >> 2; /* and rank & 1 in data */
	switch (kind) {
	case 0: /* the layers of a stage, sharded over tensor ranks: replicas are along data */
		return stage * 2 + tensor;
	case 1: /* norms, which tensor ranks have all of */
		return 4 + stage;
	case 2: /* embeddings that the first and the last stage share */
		return 6 + tensor;
	default: /* all have this */
		return 8;
	}
}
enum { GROUPS = 9 };

static const struct {
	const char *compressor, *collective;
	int every; /* steps from one move to the next */
} kinds[KINDS] = {
	{"topk:density=0.1", "ring", 3},
	{"powersgd:rank=2", "rhd", 2},
	{"onebit", "direct", 5},
	{"topk:density=0.2", "sparse", 4},
};

static struct group_sync {
	pthread_barrier_t barrier;
	model *models[RANKS]; /* by rank of the group */
	double before[MEMORIES], after[MEMORIES], off;
	uint64_t prints[RANKS];
	int failed, moves;
} syncs[GROUPS];

typedef struct member {
	gradcomp_group *group;
	model m;
	int kind, rank, P;
	struct group_sync *at;
} member;

static void move(member *s, int step, gradcomp_error *err)
{
	uint32_t end[T], n = 0;
	uint64_t h = mix(seed + (uint64_t)step * 31 + (uint64_t)(s->at - syncs));
	for (uint32_t i = 0; i < T; i++)
		if (i + 1 == T || h >> i & 1)
			end[n++] = i + 1;
	const step_plan p = {.nbuckets = n, .end = end, .lag = h >> 20 & 1};
	if (reducer_rebucket(reducer_of(s->m.red), &p, err) || reducer_of(s->m.red)->eng.list.nbuckets != n)
		__atomic_store_n(&s->at->failed, 1, __ATOMIC_SEQ_CST);
	if (s->rank == 0)
		s->at->moves++;
}

static void *steps(void *arg)
{
	member *s = arg;
	struct group_sync *at = s->at;
	gradcomp_error err = {0};
	at->models[s->rank] = &s->m;
	for (int step = 0; step < STEPS; step++) {
		pthread_barrier_wait(&at->barrier);
		if (step % kinds[s->kind].every == 0)
			move(s, step, &err);
		pthread_barrier_wait(&at->barrier);
		if (s->rank == 0)
			memories(at->models, s->P, at->before);
		pthread_barrier_wait(&at->barrier);
		if (model_step(&s->m, s->rank, step, &err))
			__atomic_store_n(&at->failed, 1, __ATOMIC_SEQ_CST);
		at->prints[s->rank] = mix(at->prints[s->rank] ^ fingerprint(&s->m));
		pthread_barrier_wait(&at->barrier);
		if (s->rank == 0) {
			memories(at->models, s->P, at->after);
			at->off = fmax(at->off, memories_off(at->models, s->P, step, at->before, at->after));
		}
	}
	pthread_barrier_wait(&at->barrier);
	if (err.text[0])
		fprintf(stderr, "# a group of kind %d, rank %d: %s\n", s->kind, s->rank, err.text);
	return NULL;
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	member members_of[KINDS] = {0};
	pthread_t threads[KINDS];
	gradcomp_error err = {0};
	int failed = 0;
	(void)P, (void)arg;
	for (int k = 0; k < KINDS && !failed; k++) {
		member *s = &members_of[k];
		failed = gradcomp_group_split(gradcomp_job_world(job), colour(k, rank), rank, &s->group, &err) ||
		         model_open_over(&s->m, s->group, kinds[k].compressor, kinds[k].collective,
		                         3000 + 1000 * (uint64_t)k, &err);
		*s = (member){s->group,
		              s->m,
		              k,
		              gradcomp_group_rank(s->group),
		              gradcomp_group_nranks(s->group),
		              &syncs[colour(k, rank)]};
	}
	if (failed) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		exit(1);
	}
	ranks_wait();
	for (int k = 0; k < KINDS; k++)
		pthread_create(&threads[k], NULL, steps, &members_of[k]);
	for (int k = 0; k < KINDS; k++)
		pthread_join(threads[k], NULL);
	ranks_wait();
	for (int k = KINDS - 1; k >= 0; k--) {
		model_close(&members_of[k].m);
		gradcomp_group_free(members_of[k].group);
	}
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	int members[GROUPS] = {0}, kind[GROUPS] = {0};
	model_seed();
	for (int k = 0; k < KINDS; k++)
		for (int r = 0; r < RANKS; r++) {
			members[colour(k, r)]++;
			kind[colour(k, r)] = k;
		}
	for (int g = 0; g < GROUPS; g++)
		pthread_barrier_init(&syncs[g].barrier, NULL, (unsigned)members[g]);
	run_ranks(RANKS, settings, body, NULL);
	for (int g = 0; g < GROUPS; g++) {
		struct group_sync *at = &syncs[g];
		int differ = 0, want = (STEPS + kinds[kind[g]].every - 1) / kinds[kind[g]].every;
		for (int r = 0; r < members[g]; r++)
			differ |= at->prints[r] != at->prints[0];
		ok(!at->failed && !differ && at->off <= 3e-5 && at->moves == want,
		   "group %d of %d ranks, %s over %s: %d moves, %.1e lost%s", g, members[g], kinds[kind[g]].compressor,
		   kinds[kind[g]].collective, at->moves, at->off, differ ? ", ranks differ" : "");
		pthread_barrier_destroy(&at->barrier);
	}
	return done_testing();
}
