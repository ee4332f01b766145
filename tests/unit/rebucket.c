/* Bucket boundaries that move every few steps, to random plans, over all compressors and
 * collectives that go together: nothing is lost, error memory moves to the bit, ranks agree,
 * also where gradients were given before the move, around a NaN, and where the state is
 * saved under one plan and loaded under another. */
#include "tests/support/plugin_pairs.h"

#include "tests/support/residuals.h"
#include "reducer/bucketing/rebucket.h"

enum { STEPS = 9, ARRAYS = 4 };

typedef struct show {
	const char *spec;
	model *models[MAX_RANKS];
	double before[MEMORIES], after[MEMORIES];
	/* Arrays by node, as they were and as they are: what shards hold. */
	float held[2][MAX_RANKS][ARRAYS][MEMORIES];
	int failed[MAX_RANKS], moves, early, shards, resident;
	int conserves;
	int measures; /* the collective does, and two reducers need not go the same way */
	double off, moved;
	uint64_t prints[MAX_RANKS];
	char cannot[508];
} show;

typedef struct random_plan {
	step_plan p;
	uint32_t end[T], position[T];
} random_plan;

/* The same on all ranks. */
static step_plan *choose(random_plan *r, uint64_t h)
{
	*r = (random_plan){.p = {.end = r->end, .position = h & 1 ? r->position : NULL, .lag = h >> 1 & 1}};
	for (uint32_t i = 0; i < T; i++)
		if (i + 1 == T || h >> (2 + i) & 1)
			r->end[r->p.nbuckets++] = i + 1;
	for (uint32_t b = 0; b < r->p.nbuckets; b++) {
		uint32_t k = (uint32_t)(mix(h + b) % (b + 1));
		r->position[b] = r->position[k];
		r->position[k] = b;
	}
	return &r->p;
}

/* One bucket, in whatever order. */
static uint64_t to_single(uint64_t h)
{
	return h & ~(uint64_t)(((1 << T) - 1) << 2);
}

static uint64_t runs;

static uint64_t of_step(int step)
{
	return mix(seed + 77 * (uint64_t)step + 7919 * runs);
}

/* Shows others what this rank holds of each array. */
static void expose(show *s, const reducer *red, int after)
{
	const engine *first = red->eng.list.shards ? red->eng.list.shards : &red->eng;
	int node = first->layout.rank;
	for (const engine *k = first; k; k = k->next) {
		for (uint32_t a = 0; node >= 0 && a < engine_arrays_count(k); a++)
			for (uint32_t i = 0; i < red->eng.list.nbuckets; i++) {
				uint64_t at = red->eng.list.buckets[i].pub.offset + k->list.buckets[i].begin;
				engine_read(k, a, k->list.buckets[i].pub.offset, k->list.buckets[i].pub.numel,
				            s->held[after][node][a] + at, NULL);
			}
	}
}

static int moves(show *s, model *m, int rank, int P, int step, gradcomp_error *err)
{
	random_plan plan;
	uint64_t h = of_step(step);
	choose(&plan, step % 3 == 2 ? to_single(h) : h);
	ranks_wait();
	if (rank == 0)
		memories(s->models, P, s->before);
	expose(s, reducer_of(m->red), 0);
	ranks_wait();
	gradcomp_status st = reducer_rebucket(reducer_of(m->red), &plan.p, err);
	int wrong = st || reducer_of(m->red)->eng.list.nbuckets != plan.p.nbuckets ||
	            reducer_of(m->red)->eng.stats.buckets != plan.p.nbuckets;
	expose(s, reducer_of(m->red), 1);
	ranks_wait();
	if (rank == 0) {
		memories(s->models, P, s->after);
		for (int i = 0; i < MEMORIES; i++)
			s->moved = fmax(s->moved, fabs(s->after[i] - s->before[i]));
		/* Into what error memory has a collective's was added. */
		wrong |= !reducer_of(m->red)->eng.list.nserver_error &&
		         memcmp(s->held[0], s->held[1], sizeof s->held[0]);
		s->moves++;
	}
	ranks_wait();
	return wrong;
}

/* A step, before which or in the middle of whose gradients the buckets move. */
static int step_with(show *s, model *m, int rank, int P, int step, int move, gradcomp_error *err)
{
	/* With a bucket of all tensors none begins before the last one is given. */
	int early = move && reducer_of(m->red)->eng.list.nbuckets == 1 ? (int)((of_step(step) >> 20) % T) : 0,
	    wrong = 0;
	int bad = (of_step(step) >> 30) % 4 == 0;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = gradient(rank, step, t, i);
	if (bad && rank == P - 1)
		m->grad[4][7] = NAN;
	for (int k = 0; k <= T; k++) {
		int t = (rank * 5 + step + 1 + k) % T;
		if (k == early && move)
			wrong |= moves(s, m, rank, P, step, err) << 1;
		if (k < T)
			wrong |= gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err) != 0;
	}
	wrong |= gradcomp_reducer_wait(m->red, err) != 0;
	if (rank == 0)
		s->early += early > 0;
	if (bad)
		return wrong | (!isnan(m->grad[4][7]) << 2);
	s->prints[rank] = mix(s->prints[rank] ^ fingerprint(m));
	ranks_wait();
	if (rank == 0) {
		memories(s->models, P, s->after);
		double off = memories_off(s->models, P, step, s->before, s->after);
		s->off = off <= s->off ? s->off : off;
	}
	return wrong;
}

/* Saved under one plan, loaded under another: the plan comes along, and all goes on to the
 * bit, also when it moves again. */
static int resumes(show *s, model *m, int rank, gradcomp_group *g, gradcomp_error *err)
{
	uint64_t bytes = 0;
	model again;
	random_plan plan;
	if (model_open(&again, g, s->spec, 3000, err))
		return 1;
	int failed = model_step(&again, rank, 1, err) != 0; /* something else before */
	failed |= gradcomp_reducer_save(m->red, NULL, 0, &bytes, err) != 0;
	void *state = malloc(bytes);
	failed |= gradcomp_reducer_save(m->red, state, bytes, &bytes, err) != 0;
	failed |= gradcomp_reducer_load(again.red, state, bytes, err) != 0;
	free(state);
	for (int step = 50; step < 53; step++) {
		choose(&plan, of_step(step));
		failed |= reducer_of(again.red)->eng.list.nbuckets != reducer_of(m->red)->eng.list.nbuckets ||
		          reducer_of(again.red)->schedule.lag != reducer_of(m->red)->schedule.lag;
		for (uint32_t b = 0; b < reducer_of(m->red)->eng.list.nbuckets; b++)
			failed |= reducer_of(again.red)->schedule.bucket[b].position !=
			          reducer_of(m->red)->schedule.bucket[b].position;
		failed |= model_step(m, rank, step, err) != 0;
		failed |= model_step(&again, rank, step, err) != 0;
		failed |= (!s->measures && fingerprint(m) != fingerprint(&again)) << 1;
		failed |= reducer_rebucket(reducer_of(m->red), &plan.p, err) != 0;
		failed |= reducer_rebucket(reducer_of(again.red), &plan.p, err) != 0;
	}
	model_close(&again);
	return failed;
}

static void body(gradcomp_job *job, int rank, int P, void *arg)
{
	show *s = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	model m;
	gradcomp_status st = model_open(&m, world, s->spec, 5000, &err);
	if (st == GRADCOMP_ERR_UNSUPPORTED && rank == 0)
		memcpy(s->cannot, err.text, sizeof s->cannot);
	if (st) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		s->failed[rank] = 1;
		return;
	}
	s->models[rank] = &m;
	if (rank == 0) {
		s->shards = reducer_of(m.red)->eng.list.shards != NULL;
		s->resident = reducer_of(m.red)->eng.list.nserver_error > 0;
		s->conserves = (reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK &&
		                !(reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_UNBIASED)) ||
		               reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_LOSSLESS ||
		               !strcmp(s->spec, "none");
	}
	for (int step = 0; step < STEPS; step++) {
		ranks_wait();
		if (rank == 0)
			memories(s->models, P, s->before);
		ranks_wait();
		s->failed[rank] |= step_with(s, &m, rank, P, step, step % 4 != 1, &err);
	}
	/* A state of the compressor's own, of parts that are no more, began anew. */
	s->failed[rank] |=
		(reducer_of(m.red)->eng.list.shards && hierarchical_of(reducer_of(m.red)->eng.list.shards)->notified !=
	                                                       (reducer_of(m.red)->eng.compressor->save != NULL))
		<< 3;
	ranks_wait();
	s->failed[rank] |= resumes(s, &m, rank, world, &err) << 4;
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&m);
}

static int with_shards, with_resident, given_early;

static void run(const char *spec, const char *collective, int P, const int *nodes)
{
	char setting[100];
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", setting, NULL};
	show *s = calloc(1, sizeof *s);
	int failed = 0, differ = 0;
	snprintf(setting, sizeof setting, "gradcomp.collective=%s", collective);
	runs++;
	s->spec = spec;
	s->measures = !strcmp(collective, "auto");
	ranks_on(nodes);
	run_ranks(P, settings, body, s);
	ranks_on(NULL);
	if (*s->cannot) {
		skip(s->cannot, "%s over %s", spec, collective);
		free(s);
		return;
	}
	for (int r = 0; r < P; r++) {
		failed |= s->failed[r];
		differ |= s->prints[r] != s->prints[0];
	}
	ok(!failed && !differ && s->moves == 7 && s->moved <= 1e-5 && (!s->conserves || s->off <= 3e-5),
	   "%s over %s, %d ranks: %d moves%s; %.1e lost%s, %.1e in moves", spec, collective, P, s->moves,
	   s->shards     ? ", of shards"
	   : s->resident ? ", with a memory of the collective's"
	                 : "",
	   s->conserves ? s->off : 0, s->conserves ? "" : " (not said)", s->moved);
	if (failed || differ)
		printf("# failed %#x, %s\n", (unsigned)failed, differ ? "ranks differ" : "ranks agree");
	with_shards += s->shards;
	with_resident += s->resident;
	given_early += s->early;
	free(s);
}

int main(void)
{
	static const int nodes[4][5] = {{0, 1}, {0, 0, 1}, {0, 0, 1, 1}, {0, 0, 0, 1, 1}};
	const char *usual[] = {plugin_path_setting(), "gradcomp.log=error", NULL};
	config *c = pairs_find(usual);
	gradcomp_error err;
	int n = 0;
	model_seed();
	for (int i = 0; c && i < ncompressors; i++)
		for (int k = 0; k < ncollectives; k++) {
			const struct gradcomp_compressor_v1 *made;
			if (pair(c, compressors[i], collectives[k], &made, &err))
				continue;
			int P = 2 + (i + k) % 4;
			run(compressors[i], collectives[k], P,
			    n++ % 2 || !strcmp(collectives[k], "hier") ? nodes[P - 2] : NULL);
		}
	config_free(c);
	run("dgc:density=0.1", "hier", 5, nodes[3]);
	run("topk:density=0.1,layerwise=yes", "hier:ranks_per_node=3", 5, NULL);
	run("topk:density=0.1", "hier:ranks_per_node=4", 5, NULL);
	run("onebit:column=64", "direct", 5, NULL);
	/* Error memory that is packed, though as floats. */
	run("topk:density=0.1,average=0.9999999", "hier:ranks_per_node=3", 5, NULL);
	run("onebit:column=64,average=0.9999999", "direct", 3, NULL);
	ok(with_shards > 2 && with_resident > 2 && given_early > 2,
	   "%d runs moved shards, %d a memory of the collective's; %d moves with gradients given", with_shards,
	   with_resident, given_early);
	return done_testing();
}
