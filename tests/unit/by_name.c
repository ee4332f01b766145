/* SPECs by name: what is taken, where a text is wrong and in which words; and a reducer of several SPECs against one
 * reducer for each of them: the same averages to the bit, whatever order gradients come in, each told of once, states
 * that go on to the bit, and nothing changed by one that is refused. */
#include "config/name_rules.h"

#include "base/id_mix.h"
#include "job/saved_state.h"

#include "tests/support/tap.h"
#include "tests/support/thread_ranks.h"

#include <math.h>

static gradcomp_error e;

static void taken(void)
{
	name_rules r;
	is_int(name_rules_parse(" *.bias = none + layers.*.attn*=powersgd:rank=4,seed=1@ring+*=topk:density=0.01 ", &r,
	                        &e),
	       0, "three rules");
	is_str(r.text, "*.bias=none+layers.*.attn*=powersgd:rank=4,seed=1@ring+*=topk:density=0.01", "without blanks");
	is_str(r.rule[1].spec, "powersgd:rank=4,seed=1", "the SPEC");
	is_str(r.rule[1].collective, "ring", "the collective");
	is_int(name_rules_find(&r, "layers.3.attn.bias"), 0, "the first that matches");
	is_int(name_rules_find(&r, "layers.3.attn.weight"), 1, "'*' stands for dots too");
	is_int(name_rules_find(&r, "head.weight"), 2, "the rest");
	name_rules_clear(&r);
	is_int(name_rules_parse("a?[0-3]=fp8", &r, &e), 0, "one rule");
	is_str(r.text, "a?[0-3]=fp8+*=none", "is followed by none for the rest");
	is_int(name_rules_find(&r, "ax2"), 0, "globs");
	is_int(name_rules_find(&r, "ax4"), 1, "and what they do not match");
	name_rules_clear(&r);
	ok(!name_rules_is("block:bits=8") && !name_rules_is("none") && !name_rules_is("dp/x:a=1") &&
	           name_rules_is("a=none"),
	   "SPECs and policies are none");
}

static void refused(void)
{
	static const struct {
		const char *text, *says;
	} bad[] = {
		{"=none", "rule 1 '': a rule is GLOB=SPEC"},
		{"a=none+", "rule 2 '': a rule is GLOB=SPEC"},
		{"a=none+b", "rule 2 'b': a rule is GLOB=SPEC"},
		{"a=", "rule 1 'a': '' does not begin with a name"},
		{"a=Block", "did you mean 'block'?"},
		{"a=block@", "does not begin with a name"},
		{"a=none+a=fp8", "rule 2 'a': it is for nothing"},
		{"*=none+a=fp8", "rule 2 'a': it is for nothing"},
		{"a=auto", "rule 1 'a': 'auto' chooses for each tensor by itself"},
		{"a=dp/block", "cannot be a name"},
		{"a\t=none", "control character at character 2"},
	};
	char many[400] = "", longest[NAME_RULES_MAX + 2];
	name_rules r;
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		is_int(name_rules_parse(bad[i].text, &r, &e), GRADCOMP_ERR_INVALID, "refused: %s", bad[i].text);
		like(e.text, bad[i].says, "its words");
		name_rules_clear(&r);
	}
	for (int i = 0; i <= NAME_RULES; i++)
		sprintf(many + strlen(many), "%st%d=fp8", i ? "+" : "", i);
	is_int(name_rules_parse(many, &r, &e), GRADCOMP_ERR_INVALID, "too many rules");
	like(e.text, "at most 16 rules", "and how many there may be");
	name_rules_clear(&r);
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = 0;
	is_int(name_rules_parse(longest, &r, &e), GRADCOMP_ERR_INVALID, "a text that is too long");
	name_rules_clear(&r);
}

enum { TENSORS = 9, SPECS = 3, STEPS = 4, NUMEL = 24 * 16 };

#define TEXT "*.bias=none+*.1.*=powersgd:rank=2+head*=none+*=topk:density=0.05"

static const struct {
	const char *name;
	uint64_t dims[2];
	uint32_t ndim, spec; /* of `specs` */
} tensors[TENSORS] = {
	{"layers.0.weight", {24, 16}, 2, 2},
	{"layers.0.bias", {24}, 1, 0},
	{"layers.1.weight", {16, 24}, 2, 1},
	{"layers.1.bias", {16}, 1, 0},
	{"layers.1.scale", {8, 8}, 2, 1},
	{"layers.2.weight", {24, 16}, 2, 2},
	{"norm", {40}, 1, 2},
	{"head.weight", {10, 16}, 2, 0},
	{"head.empty", {0}, 1, 0},
};
static const char *const specs[SPECS] = {"none", "powersgd:rank=2", "topk:density=0.05"};

/* What one rank has: the reducer of several SPECs, one for each of them, and gradients for both. */
typedef struct bench {
	gradcomp_reducer *together, *apart[SPECS];
	uint32_t as[TENSORS];
	float own[TENSORS][NUMEL], theirs[TENSORS][NUMEL];
	int told[TENSORS]; /* times that done() was called, under no lock: each on one thread at a time */
	uint64_t state;
} bench;

static uint64_t random_next(uint64_t *state)
{
	return *state = id_mix(*state, 0x9e3779b97f4a7c15u);
}

static uint64_t numel(uint32_t i)
{
	return tensors[i].dims[0] * (tensors[i].ndim == 2 ? tensors[i].dims[1] : 1);
}

static void told(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	bench *b = ctx;
	(void)err;
	if (!status)
		b->told[tensor]++;
}

static void told_run(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err)
{
	while (n--)
		told(ctx, first++, status, err);
}

static gradcomp_tensor_desc described(uint32_t i)
{
	return (gradcomp_tensor_desc){
		.name = tensors[i].name, .dims = tensors[i].dims, .ndim = tensors[i].ndim, .dtype = GRADCOMP_F32};
}

static gradcomp_status open_together(bench *b, gradcomp_job *job, const char *text, bool runs, gradcomp_error *err)
{
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = text,
	                              .bucket_bytes = 1500,
	                              .seed = 7,
	                              .done = runs ? NULL : told,
	                              .done_run = runs ? told_run : NULL,
	                              .ctx = b};
	for (uint32_t i = 0; i < TENSORS; i++)
		desc[i] = described(i);
	return gradcomp_reducer_create(gradcomp_job_world(job), desc, TENSORS, &o, &b->together, err);
}

static gradcomp_status open_apart(bench *b, gradcomp_job *job, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint32_t k = 0; !st && k < SPECS; k++) {
		gradcomp_tensor_desc desc[TENSORS];
		uint32_t n = 0;
		for (uint32_t i = 0; i < TENSORS; i++)
			if (tensors[i].spec == k) {
				b->as[i] = n;
				desc[n++] = described(i);
			}
		gradcomp_reducer_options o = {
			.struct_size = sizeof o, .compressor = specs[k], .bucket_bytes = 1500, .seed = 7};
		st = gradcomp_reducer_create(gradcomp_job_world(job), desc, n, &o, &b->apart[k], err);
	}
	return st;
}

/* Gives both the same gradients, those of one in an order of the rank's own, and waits. */
static gradcomp_status step(bench *b, int rank, int number, gradcomp_error *err)
{
	uint32_t order[TENSORS];
	gradcomp_status st = GRADCOMP_OK;
	b->state = id_mix((uint64_t)rank + 1, (uint64_t)number);
	for (uint32_t i = 0; i < TENSORS; i++) {
		order[i] = i;
		for (uint64_t j = 0; j < numel(i); j++)
			b->own[i][j] = b->theirs[i][j] =
				(float)((int64_t)(random_next(&b->state) >> 40) - (1 << 23)) / (float)(1 << 20);
	}
	for (uint32_t i = TENSORS - 1; i > 0; i--) {
		uint32_t j = (uint32_t)(random_next(&b->state) % (i + 1)), was = order[i];
		order[i] = order[j];
		order[j] = was;
	}
	for (uint32_t i = 0; !st && i < TENSORS; i++)
		st = gradcomp_reducer_ready(b->together, order[i], b->own[order[i]], err);
	for (uint32_t i = 0; !st && i < TENSORS; i++)
		st = gradcomp_reducer_ready(b->apart[tensors[i].spec], b->as[i], b->theirs[i], err);
	if (!st)
		st = gradcomp_reducer_wait(b->together, err);
	for (uint32_t k = 0; !st && k < SPECS; k++)
		st = gradcomp_reducer_wait(b->apart[k], err);
	return st;
}

static void close_all(bench *b)
{
	gradcomp_reducer_free(b->together);
	for (uint32_t k = 0; k < SPECS; k++)
		gradcomp_reducer_free(b->apart[k]);
}

static void compare(const bench *b, int rank, int number)
{
	for (uint32_t i = 0; i < TENSORS; i++)
		case_of("averages are those of a reducer of that SPEC, to the bit",
		        !memcmp(b->own[i], b->theirs[i], numel(i) * sizeof(float)), "rank %d, step %d, %s", rank,
		        number, tensors[i].name);
}

static void reduces(gradcomp_job *job, int rank, int P, void *arg)
{
	const bool *runs = arg;
	gradcomp_error err = {0};
	gradcomp_reducer_stats all = {.struct_size = sizeof all};
	double wire = 0, dense = 0;
	bench *b = calloc(1, sizeof *b);
	gradcomp_status st = open_together(b, job, TEXT, *runs, &err);
	if (!st)
		st = open_apart(b, job, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		st = step(b, rank, s, &err);
		if (!st)
			compare(b, rank, s);
	}
	case_of("all steps end well", !st, "rank %d of %d: %s", rank, P, err.text);
	if (!st) {
		for (uint32_t i = 0; i < TENSORS; i++)
			case_of("done() is called once a step", b->told[i] == STEPS, "%s: %d", tensors[i].name,
			        b->told[i]);
		gradcomp_reducer_get_stats(b->together, &all);
		for (uint32_t k = 0; k < SPECS; k++) {
			gradcomp_reducer_stats one = {.struct_size = sizeof one};
			gradcomp_reducer_get_stats(b->apart[k], &one);
			wire += one.wire_bytes;
			dense += one.dense_bytes;
		}
		case_of("bytes are counted once",
		        fabs(all.wire_bytes - wire) < 1e-6 && fabs(all.dense_bytes - dense) < 1e-6 &&
		                all.steps == STEPS,
		        "rank %d: %.1f of %.1f, dense %.1f of %.1f", rank, all.wire_bytes, wire, all.dense_bytes,
		        dense);
	}
	close_all(b);
	free(b);
}

typedef struct kept {
	void *state;
	uint64_t bytes;
} kept;

static gradcomp_status save(gradcomp_reducer *r, bool shared, kept *k, gradcomp_error *err)
{
	gradcomp_status (*call)(gradcomp_reducer *, void *, uint64_t, uint64_t *, gradcomp_error *) =
		shared ? gradcomp_reducer_save_shared : gradcomp_reducer_save;
	gradcomp_status st = call(r, NULL, 0, &k->bytes, err);
	k->state = malloc(k->bytes + 1);
	return st ? st : call(r, k->state, k->bytes, &k->bytes, err);
}

/* Loads what it saved two steps ago: both go on as they did then. One that is refused changes nothing. */
static void saves(gradcomp_job *job, int rank, int P, void *arg)
{
	const bool shared = *(const bool *)arg;
	gradcomp_error err = {0};
	kept state[1 + SPECS] = {0};
	bench *b = calloc(1, sizeof *b);
	gradcomp_status st = open_together(b, job, TEXT, false, &err);
	if (!st)
		st = open_apart(b, job, &err);
	for (int s = 0; !st && s < 2; s++)
		st = step(b, rank, s, &err);
	if (!st)
		st = save(b->together, shared, &state[0], &err);
	for (uint32_t k = 0; !st && k < SPECS; k++)
		st = save(b->apart[k], shared, &state[1 + k], &err);
	if (!st)
		st = step(b, rank, 2, &err);
	if (!st)
		compare(b, rank, 2);
	if (!st)
		st = gradcomp_reducer_load(b->together, state[0].state, state[0].bytes, &err);
	for (uint32_t k = 0; !st && k < SPECS; k++)
		st = gradcomp_reducer_load(b->apart[k], state[1 + k].state, state[1 + k].bytes, &err);
	if (!st)
		st = step(b, rank, 3, &err);
	if (!st)
		compare(b, rank, 3);
	case_of("a state is saved and loaded", !st, "rank %d of %d: %s", rank, P, err.text);
	/* Damaged on the last rank alone, and of a single SPEC. */
	if (!st && rank == P - 1)
		((unsigned char *)state[0].state)[state[0].bytes / 2] ^= 1;
	if (!st) {
		gradcomp_error why = {0};
		gradcomp_status damaged = gradcomp_reducer_load(b->together, state[0].state, state[0].bytes, &why);
		gradcomp_status foreign = gradcomp_reducer_load(b->together, state[2].state, state[2].bytes, &err);
		case_of("a damaged state is refused on all ranks", damaged && strstr(why.text, "checksum"),
		        "rank %d: %s", rank, why.text);
		case_of("a state of a single SPEC is refused",
		        foreign && strstr(err.text, "SPECs by name is needed here"), "rank %d: %s", rank, err.text);
		st = step(b, rank, 4, &err);
		if (!st)
			compare(b, rank, 4);
		case_of("and nothing is changed", !st, "rank %d: %s", rank, err.text);
	}
	for (uint32_t k = 0; k <= SPECS; k++)
		free(state[k].state);
	close_all(b);
	free(b);
}

/* A last part that refuses what the ones before it took. */
static void rolls_back(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	kept state = {0};
	bench *b = calloc(1, sizeof *b);
	(void)P, (void)arg;
	gradcomp_status st = open_together(b, job, TEXT, false, &err);
	if (!st)
		st = open_apart(b, job, &err);
	for (int s = 0; !st && s < 3; s++) {
		st = step(b, rank, s, &err);
		if (!st && s == 0)
			st = save(b->together, false, &state, &err);
	}
	if (!st) {
		/* Within the last part's, and sealed again: that part alone finds it. */
		((unsigned char *)state.state)[state.bytes - 64] ^= 1;
		saved_seal(SAVED_BY_NAME, state.state, state.bytes);
		gradcomp_status refused_it = gradcomp_reducer_load(b->together, state.state, state.bytes, &err);
		case_of("a state of which the last part is refused", refused_it != 0, "rank %d", rank);
		st = step(b, rank, 3, &err);
		if (!st)
			compare(b, rank, 3);
	}
	case_of("is undone in the others", !st, "rank %d: %s", rank, err.text);
	free(state.state);
	close_all(b);
	free(b);
}

/* Calls that are wrong: in the words that a reducer of one SPEC has, with the program's own numbers. */
static void misused(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	bench *b = calloc(1, sizeof *b);
	float *g = b->own[0];
	(void)arg;
	gradcomp_status st = open_together(b, job, rank == P - 1 ? "*.bias=none+*=fp8" : TEXT, false, &err);
	case_of("ranks with other SPECs are told", st == GRADCOMP_ERR_MISMATCH && strstr(err.text, "*.bias=none+*=fp8"),
	        "rank %d: %s", rank, err.text);
	st = open_together(b, job, "*.bias=none+*=nosuch", false, &err);
	case_of("a SPEC that is not there", st == GRADCOMP_ERR_NOTFOUND && strstr(err.text, "nosuch"), "rank %d: %s",
	        rank, err.text);
	st = open_together(b, job, "layers.1.*=fp8", false, &err);
	case_of("rules that leave tensors out", !st, "rank %d: %s", rank, err.text);
	if (st)
		goto out;
	st = gradcomp_reducer_ready(b->together, TENSORS, g, &err);
	case_of("no such tensor", st == GRADCOMP_ERR_INVALID && strstr(err.text, "has tensors 0..8"), "%s", err.text);
	st = gradcomp_reducer_ready(b->together, 2, NULL, &err);
	case_of("no gradient", st == GRADCOMP_ERR_INVALID && strstr(err.text, "tensor 2 'layers.1.weight'"), "%s",
	        err.text);
	st = gradcomp_reducer_ready(b->together, 2, b->own[2], &err);
	if (!st)
		st = gradcomp_reducer_wait(b->together, &err);
	case_of("a step that lacks tensors", st == GRADCOMP_ERR_STATE && strstr(err.text, "only 1 of 9"), "%s",
	        err.text);
	st = gradcomp_reducer_wait_for(b->together, 5, &err);
	case_of("one that was not given", st == GRADCOMP_ERR_STATE && strstr(err.text, "tensor 5 'layers.2.weight'"),
	        "%s", err.text);
	uint64_t bytes;
	st = gradcomp_reducer_save(b->together, NULL, 0, &bytes, &err);
	case_of("a state in the middle of a step", st == GRADCOMP_ERR_STATE, "%s", err.text);
	ranks_wait();
	st = gradcomp_reducer_ready(b->together, 2, b->own[2], &err);
	case_of("one that is given twice fails the job",
	        st && strstr(err.text, "tensor 2 'layers.1.weight' was given again"), "%s", err.text);
	st = gradcomp_reducer_wait(b->together, &err);
	case_of("and wait() says so", st && strstr(err.text, "was given again"), "%s", err.text);
out:
	gradcomp_reducer_free(b->together);
	free(b);
}

int main(void)
{
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	const char *const *all[] = {settings, NULL, NULL};
	static const bool no, yes = true;
	rank_arg results[3];
	taken();
	refused();
	for (int P = 1; P <= 5; P += 2) {
		char who[32];
		snprintf(who, sizeof who, "%d ranks", P);
		run_ranks(P, settings, reduces, (void *)(P == 3 ? &yes : &no));
		run_ranks(P, settings, saves, (void *)&no);
		run_ranks(P, settings, saves, (void *)&yes);
		tap_cases(who);
	}
	run_ranks(3, settings, rolls_back, NULL);
	/* The job fails in the end, so leaving it does. */
	ranks_wait_init(3);
	run_ranks_with(3, all, results, misused, NULL);
	ranks_wait_end();
	tap_cases("misused");
	return done_testing();
}
