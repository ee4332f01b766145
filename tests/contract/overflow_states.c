/* Finite gradients that overflow, in the method's own arithmetic or in what it keeps, fifty times in
 * a run: every compressor of this build that keeps anything, over the collectives that carry it. No call
 * fails; a result is finite or NaN in all of a bucket, on all ranks alike; what is kept stays finite, is
 * unchanged or cleared where the result is NaN; and the next ordinary step is ordinary. */
#include "tests/support/plugin_pairs.h"
#include "tests/support/small_model.h"

#include "reducer/reducer.h"

#include <float.h>
#include <math.h>

enum { ROUNDS = 50, P = 3, ARRAYS = 8 };

/* How a step's gradients are large. */
enum { ALL_LARGE, ALL_LARGEST, ONE_RANK, ONE_NUMBER, ONE_TENSOR, GROWING, KINDS };
static const char *const kinds[] = {"1e38 everywhere", "the largest everywhere", "one rank's", "one number",
                                    "one tensor",      "1e19 and then 1e38"};

enum { FAILED = 1, MIXED = 2, DIFFERS = 4, NOT_FINITE = 8, CHANGED = 16, NOT_ORDINARY = 32, REFUSED = 64, NEVER = 128 };
static const char *const said[] = {"a call failed",
                                   "a bucket's result is neither finite nor NaN in all of it",
                                   "ranks differ",
                                   "what is kept is not finite",
                                   "NaN, and what is kept is neither as it was nor cleared",
                                   "an ordinary step afterwards is not finite",
                                   "the state that it saves is refused"};

typedef struct flood {
	const char *spec, *collective;
	unsigned wrong[MAX_RANKS];
	int step[MAX_RANKS], kind[MAX_RANKS], waits[MAX_RANKS], overflows, rounds;
	uint64_t prints[MAX_RANKS];
	gradcomp_error why[MAX_RANKS];
} flood;

static void note(flood *f, int rank, unsigned what, int step, int kind)
{
	if (!f->wrong[rank])
		f->step[rank] = step, f->kind[rank] = kind;
	f->wrong[rank] |= what;
}

/* Everything kept, one array after another; *n of it. To be freed. */
static float *kept(const model *m, size_t *n)
{
	const reducer *red = reducer_of(m->red);
	float *all = NULL;
	*n = 0;
	for (const engine *k = red->eng.list.shards ? red->eng.list.shards : &red->eng; k; k = k->next)
		for (uint32_t a = 0; a < engine_arrays_count(k); a++) {
			float *more = realloc(all, (*n + k->layout.numel + 1) * sizeof *all);
			if (!more)
				abort();
			all = more;
			engine_read(k, a, 0, k->layout.numel, all + *n, NULL);
			*n += k->layout.numel;
		}
	return all;
}

static float large(int kind, int rank, int t, uint64_t i, int again)
{
	const float sign = mix(seed + i * 31 + (uint64_t)t) % 2 ? 1 : -1;
	switch (kind) {
	case ALL_LARGE:
		return 1e38f * sign;
	case ALL_LARGEST:
		return FLT_MAX;
	case ONE_RANK:
		return rank == 1 ? 3e38f * sign : 0.1f;
	case ONE_NUMBER:
		return rank == 0 && i == mix(seed) % numel(t) ? FLT_MAX : 0.1f * sign;
	case ONE_TENSOR:
		return t == 5 ? 3e38f * sign : 0.1f;
	default:
		return (again ? 1e38f : 1e19f) * sign;
	}
}

static gradcomp_status large_step(model *m, int rank, int kind, int again, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = T - 1; !st && t >= 0; t--) {
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = large(kind, rank, t, i, again);
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	}
	return st ? st : gradcomp_reducer_wait(m->red, err);
}

/* 0: all finite; 1: a bucket is NaN, the others finite or NaN; -1: anything else. Of two levels some shards of a
 * bucket may be. */
static int result(const model *m)
{
	const reducer *red = reducer_of(m->red);
	int is = 0;
	for (uint32_t b = 0; b < red->eng.list.nbuckets; b++) {
		const gradcomp_bucket *pub = &red->eng.list.buckets[b].pub;
		uint64_t nans = 0, numbers = 0;
		for (uint32_t i = pub->first; i < pub->first + pub->ntensors; i++) {
			int t = T - 1 - (int)i;
			for (uint64_t k = 0; k < numel(t); k++) {
				nans += isnan(m->grad[t][k]) != 0;
				numbers += isfinite(m->grad[t][k]) != 0;
			}
		}
		if (nans + numbers != pub->numel || (nans && numbers && !red->eng.list.shards))
			return -1;
		is |= nans != 0;
	}
	return is;
}

/* Returns 1 when numbers are within -most..most. */
static int within(const float *x, size_t n, float most)
{
	int is = 1;
	for (size_t i = 0; i < n; i++)
		is &= fabsf(x[i]) <= most;
	return is;
}

/* Bucket by bucket; without two levels, where shards lie otherwise. */
static int cleared_or_same(const model *m, const float *before, const float *after, size_t n)
{
	const engine *eng = &reducer_of(m->red)->eng;
	uint64_t numel_all = eng->layout.numel;
	int right = 1;
	for (uint32_t b = 0; !eng->list.shards && b < eng->list.nbuckets; b++) {
		const gradcomp_bucket *pub = &eng->list.buckets[b].pub;
		int t = T - 1 - (int)pub->first;
		while (t > 0 && !numel(t))
			t--;
		if (!pub->numel || !isnan(m->grad[t][0]))
			continue;
		for (size_t a = 0; a + numel_all <= n; a += numel_all) {
			int same = !memcmp(before + a + pub->offset, after + a + pub->offset,
			                   pub->numel * sizeof *after),
			    zero = 1;
			for (uint64_t i = 0; i < pub->numel; i++)
				zero &= after[a + pub->offset + i] == 0;
			right &= same || zero;
		}
	}
	return right;
}

static void save_and_load(flood *f, const model *m, int rank, int step, int kind)
{
	uint64_t bytes = 0;
	gradcomp_error *err = &f->why[rank];
	if (gradcomp_reducer_save(m->red, NULL, 0, &bytes, err)) {
		note(f, rank, FAILED, step, kind);
		return;
	}
	char *state = malloc(bytes);
	if (gradcomp_reducer_save(m->red, state, bytes, &bytes, err) ||
	    gradcomp_reducer_load(m->red, state, bytes, err))
		note(f, rank, REFUSED, step, kind);
	free(state);
}

static void ordinary(flood *f, model *m, int rank, int step, int kind)
{
	size_t n;
	float *before = kept(m, &n);
	int large = 0;
	f->waits[rank] = !within(before, n, 1e35f);
	free(before);
	ranks_wait();
	for (int r = 0; r < P; r++)
		large |= f->waits[r];
	ranks_wait();
	if (model_step(m, rank, step, &f->why[rank]))
		note(f, rank, FAILED, step, kind);
	else if (result(m) && !large)
		note(f, rank, NOT_ORDINARY, step, kind);
}

static void floods(gradcomp_job *job, int rank, int nranks, void *arg)
{
	flood *f = arg;
	gradcomp_error *err = &f->why[rank];
	model m;
	(void)nranks;
	if (model_open_over(&m, gradcomp_job_world(job), f->spec, f->collective, 5000, err)) {
		f->wrong[rank] = NEVER;
		return;
	}
	for (int s = 0; s < f->rounds && !(f->wrong[rank] & FAILED); s++) {
		const int kind = s % KINDS, times = 1 + s / KINDS % 3;
		/* Numbers near the end of the range that wait to be sent overflow when they are. */
		ordinary(f, &m, rank, s, kind);
		for (int k = 0; k < times && !(f->wrong[rank] & FAILED); k++) {
			size_t n;
			float *before = kept(&m, &n), *after;
			if (large_step(&m, rank, kind, k, err))
				note(f, rank, FAILED, s, kind);
			after = kept(&m, &n);
			int is = result(&m);
			if (is < 0)
				note(f, rank, MIXED, s, kind);
			if (!rank)
				f->overflows += is == 1;
			if (!within(after, n, FLT_MAX))
				note(f, rank, NOT_FINITE, s, kind);
			if (is == 1 && !cleared_or_same(&m, before, after, n))
				note(f, rank, CHANGED, s, kind);
			f->prints[rank] = mix(f->prints[rank] ^ fingerprint(&m));
			free(before);
			free(after);
		}
		if (s % 7 == 6 && !(f->wrong[rank] & FAILED))
			save_and_load(f, &m, rank, s, kind);
	}
	model_close(&m);
}

static int flooded(const char *spec, const char *collective, int rounds, const char *const *settings)
{
	flood f = {.spec = spec, .collective = collective, .rounds = rounds};
	char text[400] = "";
	unsigned wrong = 0;
	int at = 0;
	run_ranks(P, settings, floods, &f);
	for (int r = 0; r < P; r++) {
		wrong |= f.wrong[r] | (f.prints[r] != f.prints[0] ? DIFFERS : 0);
		at = f.wrong[at] ? at : r;
	}
	if (wrong & NEVER) {
		skip(f.why[0].text, "%s over %s", spec, collective);
		return 0;
	}
	for (int i = 0; i < 7; i++)
		if (wrong & 1u << i)
			snprintf(text + strlen(text), sizeof text - strlen(text), "; %s", said[i]);
	ok(!wrong, "%s over %s: %d results of a run are NaN, and it goes on%s", spec, collective, f.overflows, text);
	if (wrong)
		printf("# first in round %d, with %s: %s\n", f.step[at], kinds[f.kind[at]], f.why[at].text);
	return f.overflows;
}

/* With each other value of what is chosen from a list, and where it is not compressed at first. */
static int variants(const char *name, const struct gradcomp_compressor_v1 *c, const char *collective,
                    const char *const *settings)
{
	int overflows = 0;
	char spec[200];
	for (uint32_t i = 0; i < c->info.nparams; i++) {
		const gradcomp_param *p = &c->info.params[i];
		const char *const flags[] = {"no", "yes", NULL}, *const steps[] = {"20", NULL};
		const char *const *of = p->type == GRADCOMP_PARAM_CHOICE ? p->choices
		                        : p->type == GRADCOMP_PARAM_BOOL ? flags
		                                                         : steps;
		for (int k = 0; (of != steps || !strcmp(p->name, "start_step")) && of[k]; k++) {
			if (!strcmp(of[k], p->def))
				continue;
			snprintf(spec, sizeof spec, "%.60s:%.60s=%.60s", name, p->name, of[k]);
			overflows += flooded(spec, collective, ROUNDS / 4, settings);
		}
	}
	return overflows;
}

int main(void)
{
	static const char *const over[] = {"ring", "direct", "hier:ranks_per_node=2", "tree"};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	config *c = pairs_find(settings);
	gradcomp_error err;
	int keep = 0, overflows = 0;
	model_seed();
	if (!c)
		return done_testing();
	for (int i = 0; i < ncompressors; i++) {
		int carried = 0;
		for (size_t k = 0; k < sizeof over / sizeof *over; k++) {
			const struct gradcomp_compressor_v1 *made;
			/* Trees are for what no other carries. */
			if (k == 3 && carried)
				continue;
			if (pair(c, compressors[i], over[k], &made, &err) ||
			    !(made->traits & GRADCOMP_TRAIT_ERROR_FEEDBACK || made->state_arrays || made->save))
				continue;
			keep++;
			overflows += flooded(compressors[i], over[k], ROUNDS, settings);
			if (!carried++)
				overflows += variants(compressors[i], made, over[k], settings);
		}
	}
	config_free(c);
	ok(keep > 20 && overflows > keep, "%d pairs keep something, %d results are NaN", keep, overflows);
	return done_testing();
}
