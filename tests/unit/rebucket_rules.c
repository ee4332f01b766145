/* A move of bucket boundaries is refused on all ranks alike; results which do not depend on buckets do not depend
 * on moves; error memory is given back. */
#include "tests/support/residuals.h"
#include "reducer/bucketing/rebucket.h"

#include "base/error.h"

/* Only rank 0 prints: TAP is not for threads. */
static gradcomp_status statuses[MAX_RANKS];
static char texts[MAX_RANKS][508];

/* Gives the bad plan to rank `who`, or with -1 to all. Others get a good one. */
static void refused(model *m, int rank, int P, const step_plan *bad, int who, const char *words, const char *what)
{
	uint32_t end[2] = {3, T}, before = reducer_of(m->red)->eng.list.nbuckets;
	const step_plan good = {.nbuckets = 2, .end = end};
	gradcomp_error err = {0}, own = {0};
	statuses[rank] = reducer_rebucket(reducer_of(m->red), who < 0 || who == rank ? bad : &good, &err);
	memcpy(texts[rank], err.text, sizeof texts[0]);
	gradcomp_status st = model_step(m, rank, 3, &own);
	ranks_wait();
	int all = !st && reducer_of(m->red)->eng.list.nbuckets == before, said = 0;
	for (int r = 0; r < P; r++) {
		all &= statuses[r] != GRADCOMP_OK;
		said |= strstr(texts[r], words) != NULL;
	}
	if (rank == 0)
		ok(all && said, "%s: %s", what, texts[0][0] ? texts[0] : "was taken");
	char named[32];
	snprintf(named, sizeof named, "rank %d on", who);
	if (who >= 0 && rank == 0)
		ok(strstr(texts[who ? 0 : 1], who < P ? named : "different plans"), "others hear of it: %s",
		   texts[who ? 0 : 1]);
	ranks_wait();
}

static void refusals(gradcomp_job *job, int rank, int P, void *arg)
{
	uint32_t falls[3] = {4, 2, T}, shorter[2] = {2, T - 1}, two[2] = {2, T}, many[T + 1] = {1, 2, 3, 4, 5, 6, 6};
	uint32_t twice[2] = {1, 1}, far[2] = {0, 2}, whole[1] = {T};
	gradcomp_error err = {0};
	model m;
	(void)arg;
	if (model_open(&m, gradcomp_job_world(job), "topk:density=0.1", 5000, &err)) {
		ok(0, "rank %d: %s", rank, err.text);
		return;
	}
	refused(&m, rank, P, &(step_plan){.nbuckets = 3, .end = falls}, -1, "bucket 1", "ends that fall");
	refused(&m, rank, P, &(step_plan){.nbuckets = 2, .end = shorter}, -1, "tensor 5",
	        "a tensor that is in no bucket");
	refused(&m, rank, P, &(step_plan){.nbuckets = T + 1, .end = many}, -1, "7 buckets for 6 tensors",
	        "too many buckets");
	refused(&m, rank, P, &(step_plan){.end = many}, -1, "0 buckets", "no bucket");
	refused(&m, rank, P, &(step_plan){.nbuckets = 2, .end = two, .position = twice}, -1, "position 1",
	        "two of a position");
	refused(&m, rank, P, &(step_plan){.nbuckets = 2, .end = two, .position = far}, -1, "position 2",
	        "a position there is not");
	refused(&m, rank, P, &(step_plan){.nbuckets = 2, .end = two, .lag = 2}, -1, "lag is 2", "a lag of two");
	refused(&m, rank, P, &(step_plan){.nbuckets = 3, .end = falls}, 1, "bucket 1", "one rank's plan is none");
	/* No rank has the number P: rank P - 1 has a good plan, but another. */
	const step_plan other = {.nbuckets = 2, .end = two};
	refused(&m, rank, P, &other, rank == P - 1 ? rank : P, "different plans", "one rank has another plan");
	struct gradcomp_compressor_v1 small = *reducer_of(m.red)->eng.compressor;
	const struct gradcomp_compressor_v1 *was = reducer_of(m.red)->eng.compressor;
	small.max_bucket = 2000;
	reducer_of(m.red)->eng.compressor = &small;
	refused(&m, rank, P, &(step_plan){.nbuckets = 1, .end = whole}, -1, "counts up to 2000 in one bucket",
	        "more than the compressor can count");
	reducer_of(m.red)->eng.compressor = was;
	refused(&m, rank, P, &(step_plan){.nbuckets = 3, .end = falls}, 0, "bucket 1", "rank 0's plan is none");
	model_close(&m);
}

typedef struct twins {
	const char *spec;
	int differ[MAX_RANKS], failed[MAX_RANKS];
} twins;

static void twin_body(gradcomp_job *job, int rank, int P, void *arg)
{
	twins *s = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	model a, b;
	(void)P;
	if (model_open(&a, world, s->spec, 5000, &err) || model_open(&b, world, s->spec, 5000, &err)) {
		fprintf(stderr, "# %s\n", err.text);
		s->failed[rank] = 1;
		return;
	}
	for (int step = 0; step < 12; step++) {
		uint32_t end[T], n = 0;
		for (uint32_t i = 0; i < T; i++)
			if (i + 1 == T || mix(seed + (uint64_t)step) >> i & 1)
				end[n++] = i + 1;
		const step_plan p = {.nbuckets = n, .end = end, .lag = (uint32_t)step % 2};
		s->failed[rank] |= step % 2 && (reducer_rebucket(reducer_of(a.red), &p, &err) ||
		                                reducer_of(a.red)->eng.list.nbuckets != n);
		s->failed[rank] |= model_step(&a, rank, step, &err) || model_step(&b, rank, step, &err);
		s->differ[rank] |= (fingerprint(&a) != fingerprint(&b)) << step;
	}
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&a);
	model_close(&b);
}

static void same(const char *spec, int P, const char *const *settings)
{
	twins s = {.spec = spec};
	int failed = 0, differ = 0;
	run_ranks(P, settings, twin_body, &s);
	for (int r = 0; r < P; r++) {
		failed |= s.failed[r];
		differ |= s.differ[r];
	}
	ok(!failed && !differ, "%s on %d ranks: the same to the bit as without moving", spec, P);
	if (failed || differ)
		printf("# failed %d, other results in steps %#x\n", failed, (unsigned)differ);
}

/* The functions below check what was measured. */

/* With two levels the compressor's instance is another one after a move: it is told again. */
typedef struct hearsay {
	uint64_t bytes[3][MAX_RANKS]; /* at first, measured, and after a move there and back */
	int failed[MAX_RANKS];
} hearsay;

/* That the compressor on this rank's shards plans to send of them in the step that comes. */
static uint64_t planned(const reducer *red)
{
	const engine *in = red->eng.list.shards;
	uint64_t bytes = 0;
	gradcomp_error err;
	for (uint32_t b = 0; b < in->list.nbuckets; b++) {
		gradcomp_plan p = {.struct_size = sizeof p};
		if (in->list.buckets[b].pub.numel &&
		    red->eng.compressor->plan(in->instance, &in->list.buckets[b].pub, 10, &p, &err))
			return 0;
		for (uint32_t k = 0; k < p.nrounds; k++)
			bytes += p.rounds[k].bound + p.rounds[k].count * 4;
	}
	return bytes;
}

static void measured_again_body(gradcomp_job *job, int rank, int P, void *arg)
{
	hearsay *s = arg;
	double backward[T] = {1e-4, 2e-4, 3e-3, 1e-5, 5e-4, 1e-3};
	const gradcomp_measured m = {.struct_size = sizeof m,
	                             .ntensors = T,
	                             .backward = backward,
	                             .exchange_a = 1e-5,
	                             .exchange_b = 1e-7,
	                             .encode_a = 1e-6,
	                             .encode_b = 1e-9};
	uint32_t there[2] = {3, T}, back[T], n = 0;
	gradcomp_error err = {0};
	model a;
	(void)P;
	if (model_open(&a, gradcomp_job_world(job), "lags:adaptive=yes,density=0.01,measure_steps=1000", 5000, &err)) {
		fprintf(stderr, "# %s\n", err.text);
		s->failed[rank] = 1;
		return;
	}
	const step_plan away = {.nbuckets = 2, .end = there};
	step_plan home = {.end = back};
	for (; n < reducer_of(a.red)->eng.list.nbuckets; n++)
		back[n] = reducer_of(a.red)->eng.list.buckets[n].pub.first +
		          reducer_of(a.red)->eng.list.buckets[n].pub.ntensors;
	home.nbuckets = n;
	s->failed[rank] |= model_step(&a, rank, 0, &err) != 0;
	s->bytes[0][rank] = planned(reducer_of(a.red));
	s->failed[rank] |= reducer_of(a.red)->eng.ways.levels->measured(&reducer_of(a.red)->eng, &m, &err) ||
	                   model_step(&a, rank, 1, &err);
	s->bytes[1][rank] = planned(reducer_of(a.red));
	s->failed[rank] |= reducer_rebucket(reducer_of(a.red), &away, &err) || model_step(&a, rank, 2, &err);
	s->failed[rank] |= reducer_rebucket(reducer_of(a.red), &home, &err) || model_step(&a, rank, 3, &err);
	s->bytes[2][rank] = planned(reducer_of(a.red));
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&a);
}

static void measured_again(int P, const char *const *settings)
{
	hearsay *s = calloc(1, sizeof *s);
	int failed = 0, same = 1, learnt = 0;
	run_ranks(P, settings, measured_again_body, s);
	for (int r = 0; r < P; r++) {
		failed |= s->failed[r];
		learnt |= s->bytes[0][r] != s->bytes[1][r];
		same &= s->bytes[1][r] == s->bytes[2][r];
	}
	ok(!failed && learnt && same,
	   "after a move the compressor on shards is told again what was measured (%llu bytes, then %llu and %llu)",
	   (unsigned long long)s->bytes[0][0], (unsigned long long)s->bytes[1][0], (unsigned long long)s->bytes[2][0]);
	free(s);
}

typedef struct debts {
	const char *spec;
	model *models[MAX_RANKS];
	double before[MEMORIES], after[MEMORIES], given[MAX_RANKS][MEMORIES];
	int failed[MAX_RANKS];
	double weight; /* a part of what holders give, in units of their sum */
} debts;

static void give_body(gradcomp_job *job, int rank, int P, void *arg)
{
	debts *s = arg;
	gradcomp_error err = {0};
	model m;
	float to[MEMORIES];
	if (model_open(&m, gradcomp_job_world(job), s->spec, 5000, &err)) {
		fprintf(stderr, "# %s\n", err.text);
		s->failed[rank] = 1;
		return;
	}
	s->models[rank] = &m;
	int own = reducer_of(m.red)->eng.compressor->traits & GRADCOMP_TRAIT_OWN_MOMENTUM;
	for (int step = 0; step < 3; step++)
		s->failed[rank] |= model_step(&m, rank, step, &err) != 0;
	ranks_wait();
	if (rank == 0) {
		s->weight = reducer_of(m.red)->eng.list.shards
		                    ? hierarchical_of(reducer_of(m.red)->eng.list.shards)->scale
		                    : 1;
		memories(s->models, P, s->before);
		for (int r = 0; own && r < P; r++)
			for (uint64_t i = 0; i < reducer_of(m.red)->eng.layout.numel; i++)
				s->before[i] += reducer_of(s->models[r]->red)->eng.arrays.state[1][i];
	}
	ranks_wait();
	for (uint32_t t = 0; t < T; t++) {
		uint64_t at = reducer_of(m.red)->eng.layout.tensors[T - 1 - t].offset;
		memset(to, 0, sizeof to);
		s->failed[rank] |= reducer_residual_export(reducer_of(m.red), t, to, &err) != 0;
		for (uint64_t i = 0; i < numel((int)t); i++)
			s->given[rank][at + i] = to[i];
		for (uint64_t i = numel((int)t); i < MEMORIES; i++)
			s->failed[rank] |= to[i] != 0;
	}
	ranks_wait();
	if (rank == 0)
		memories(s->models, P, s->after);
	ranks_wait();
	for (uint64_t i = 0; own && i < reducer_of(m.red)->eng.layout.numel; i++)
		s->failed[rank] |= reducer_of(m.red)->eng.arrays.state[1][i] != 0;
	gradcomp_error no;
	s->failed[rank] |= (reducer_residual_export(reducer_of(m.red), T, to, &no) != GRADCOMP_ERR_INVALID) << 1;
	s->failed[rank] |= (gradcomp_reducer_ready(m.red, 0, m.grad[0], &err) != 0) << 2;
	s->failed[rank] |= (reducer_residual_export(reducer_of(m.red), 0, to, &no) != GRADCOMP_ERR_STATE) << 3;
	for (uint32_t t = 1; t < T; t++)
		s->failed[rank] |= (gradcomp_reducer_ready(m.red, t, m.grad[t], &err) != 0) << 2;
	s->failed[rank] |= (gradcomp_reducer_wait(m.red, &err) != 0) << 2;
	if (err.text[0])
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	ranks_wait();
	model_close(&m);
}

static void gives(const char *spec, int P, const char *const *settings)
{
	debts *s = calloc(1, sizeof *s);
	int failed = 0;
	double owed = 0, off = 0, left = 0;
	s->spec = spec;
	run_ranks(P, settings, give_body, s);
	for (int r = 0; r < P; r++)
		failed |= s->failed[r];
	for (int i = 0; i < MEMORIES; i++) {
		double sum = 0;
		for (int r = 0; r < P; r++)
			sum += s->given[r][i];
		off = fmax(off, fabs(sum * s->weight - s->before[i]));
		owed = fmax(owed, fabs(s->before[i]));
		left = fmax(left, fabs(s->after[i]));
	}
	ok(!failed && owed > 0.1 && off <= 1e-5 && left == 0,
	   "%s, %s, %d ranks: all that is owed comes back, once (%.1e lost)", spec, settings[3], P, off);
	if (failed || left > 0)
		printf("# failed %#x, %g is left\n", (unsigned)failed, left);
	free(s);
}

static const char *const *over(const char *collective)
{
	static char setting[100];
	static const char *settings[5];
	settings[0] = plugin_path_setting();
	settings[1] = "transport.timeout=30";
	settings[2] = "gradcomp.log=error";
	settings[3] = setting;
	snprintf(setting, sizeof setting, "gradcomp.collective=%s", collective);
	return settings;
}

int main(void)
{
	/* A sum of two numbers is the same in any order, of more it depends on where a ring
	 * cuts the bucket; what is gathered is added up rank by rank. */
	static const struct {
		const char *spec;
		int P;
	} alike[] = {
		{"none", 2},
		{"cast:type=bf16", 2},
		{"powersgd:rank=2", 2},
		{"acpsgd:rank=2", 2},
		{"lqsgd:rank=2", 2},
		{"topk:density=0.1,layerwise=yes", 3},
		{"threshold:t=0.3", 3},
		{"dgc:density=0.1", 2},
		{"signsgd", 3},
		{"terngrad", 2},
	};
	model_seed();
	run_ranks(3, over("ring"), refusals, NULL);
	for (size_t i = 0; i < sizeof alike / sizeof alike[0]; i++)
		same(alike[i].spec, alike[i].P, over("ring"));
	measured_again(4, over("hier:ranks_per_node=2"));
	gives("topk:density=0.1", 3, over("ring"));
	gives("powersgd:rank=1", 2, over("tree"));
	gives("onebit", 3, over("direct"));
	gives("dgc:density=0.05", 2, over("ring"));
	gives("topk:density=0.1", 4, over("hier:ranks_per_node=2"));
	gives("topk:density=0.1", 5, over("hier:ranks_per_node=3"));
	return done_testing();
}
