/* A coder does not take these: SPECs that give no code, arguments that are wrong, ranks that make different coders
 * or mean different calls. Each is named, and no rank waits for another. */
#include "tests/support/coder_fixture.h"

#include <stdatomic.h>

static void checked(const char *compressor, const char *collective, gradcomp_status want, const char *words)
{
	gradcomp_error err = {0};
	gradcomp_status st = gradcomp_coder_check(compressor, collective, &err);
	ok(st == want && strstr(st ? err.text : words, words), "check of %s over %s: %s", compressor,
	   collective ? collective : "the default", st ? err.text : "taken");
}

static void specs(void)
{
	static const char *const matrices[] = {"powersgd", "acpsgd", "lqsgd:rank=2", "dion"},
				 *const others[] = {"topk",   "randomk", "qsgd",      "terngrad",
	                                            "onebit", "dgc",     "blocktopk", "demo"};
	static const char *const takes[] = {"block:bits=8",
	                                    "block:bits=4",
	                                    "block:bits=2,rounding=stochastic",
	                                    "lossless",
	                                    "none",
	                                    "fp8",
	                                    "fp8:scales=e8m0,block=32",
	                                    "natural",
	                                    "cast",
	                                    "cast:type=fp16",
	                                    "fp4",
	                                    "fp4:type=mx"};
	for (size_t i = 0; i < sizeof takes / sizeof takes[0]; i++)
		for (int c = 0; c < 5; c++)
			checked(takes[i], ((const char *const[]){NULL, "ring", "direct", "sparse", "auto"})[c],
			        GRADCOMP_OK, "");
	for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++)
		checked(matrices[i], NULL, GRADCOMP_ERR_UNSUPPORTED,
		        "works on matrices, of which a flat shard has none; compressors that shards can be sent "
		        "with: block");
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		checked(others[i], NULL, GRADCOMP_ERR_UNSUPPORTED, "compressors that shards can be sent with: block");
	checked("auto", NULL, GRADCOMP_ERR_UNSUPPORTED, "'auto' chooses among compressors");
	checked("auto:budget=3", NULL, GRADCOMP_ERR_UNSUPPORTED, "'auto' chooses among compressors");
	checked("cast:sum=wire", NULL, GRADCOMP_ERR_UNSUPPORTED, "sum=wire");
	checked("block:start_step=10", NULL, GRADCOMP_ERR_UNSUPPORTED, "leave start_step out");
	checked("block:bits=3", NULL, GRADCOMP_ERR_INVALID, "bits");
	checked("nothing_such", NULL, GRADCOMP_ERR_NOTFOUND, "nothing_such");
	checked("block", "rhd", GRADCOMP_ERR_UNSUPPORTED,
	        "collective 'rhd' serves no coded reduce-scatter, which a coder of 'block' needs; collectives "
	        "that do: auto, direct, ");
	checked("block", "tree", GRADCOMP_ERR_UNSUPPORTED, "collectives that do: ");
}

typedef struct told {
	atomic_int wrong;
	char text[508];
} told;

static void refused(told *t, gradcomp_status st, gradcomp_status want, const gradcomp_error *err, const char *words)
{
	if ((st != want || !strstr(err->text, words)) && !atomic_fetch_add(&t->wrong, 1))
		printf("# %d '%s' should be %d '%s'\n", (int)st, err->text, (int)want, words);
}

static void arguments(gradcomp_job *job, int rank, int P, void *arg)
{
	told *t = arg;
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_coder_options o = {.struct_size = sizeof o, .name = "mine"};
	gradcomp_coder *k, *none;
	gradcomp_coder_request *q;
	float x[32] = {0};
	int done;
	const uint64_t counts[] = {4, 4, 4}, other[] = {4, 5, 3}, huge[] = {1, UINT64_MAX / 8, UINT64_MAX / 8};
	(void)rank, (void)P;
	refused(t, gradcomp_coder_create(world, "powersgd", &o, &none, &err), GRADCOMP_ERR_UNSUPPORTED, &err,
	        "flat shard");
	if (none)
		refused(t, 1, 0, &err, "*out is NULL");
	refused(t, gradcomp_coder_create(NULL, "block", &o, &none, &err), GRADCOMP_ERR_INVALID, &err, "group is NULL");
	refused(t, gradcomp_coder_create(world, "block", &o, NULL, &err), GRADCOMP_ERR_INVALID, &err, "out is NULL");
	if (gradcomp_coder_create(world, "block", &o, &k, &err)) {
		refused(t, 1, 0, &err, "made");
		return;
	}
	refused(t, gradcomp_coder_all_gather(k, x, x + 8, NULL, GRADCOMP_F32, &err), GRADCOMP_ERR_INVALID, &err,
	        "counts is NULL");
	refused(t, gradcomp_coder_all_gather(NULL, x, x + 8, counts, GRADCOMP_F32, &err), GRADCOMP_ERR_INVALID, &err,
	        "coder is NULL");
	refused(t, gradcomp_coder_all_gather_start(k, x, x + 8, counts, GRADCOMP_F32, NULL, &err), GRADCOMP_ERR_INVALID,
	        &err, "request is NULL");
	refused(t, gradcomp_coder_all_gather(k, NULL, x + 8, counts, GRADCOMP_F32, &err), GRADCOMP_ERR_INVALID, &err,
	        "coder 'mine': in of the all-gather is NULL for 4 numbers");
	refused(t, gradcomp_coder_reduce_scatter(k, x, NULL, counts, GRADCOMP_F32, 1, 0, &err), GRADCOMP_ERR_INVALID,
	        &err, "out of the reduce-scatter is NULL for 4 numbers");
	refused(t, gradcomp_coder_all_gather(k, x, x + 8, huge, GRADCOMP_F32, &err), GRADCOMP_ERR_RANGE, &err,
	        "rank 1");
	refused(t, gradcomp_coder_all_gather(k, x, x + 8, counts, GRADCOMP_F64, &err), GRADCOMP_ERR_UNSUPPORTED, &err,
	        "element type float64 (3): a coder takes float32, float16 and bfloat16");
	refused(t, gradcomp_coder_all_gather(k, x, x + 8, counts, (gradcomp_dtype)77, &err), GRADCOMP_ERR_UNSUPPORTED,
	        &err, "(77)");
	for (int i = 0; i < 3; i++)
		refused(t,
		        gradcomp_coder_reduce_scatter(k, x, x + 16, counts, GRADCOMP_F32,
		                                      ((const double[]){0, NAN, INFINITY})[i], 0, &err),
		        GRADCOMP_ERR_INVALID, &err, "must be finite and not 0");
	refused(t, gradcomp_coder_test(NULL, &done, &err), GRADCOMP_ERR_INVALID, &err, "request is NULL");
	refused(t, gradcomp_coder_wait(NULL, &err), GRADCOMP_OK, &err, "");
	/* None of them was the end: a slot, then the same with other counts. */
	if (gradcomp_coder_reduce_scatter(k, x, x + 16, counts, GRADCOMP_F32, 1, 3, &err))
		refused(t, 1, 0, &err, "goes on");
	refused(t, gradcomp_coder_reduce_scatter_start(k, x, x + 16, other, GRADCOMP_F32, 1, 3, &q, &err),
	        GRADCOMP_ERR_MISMATCH, &err,
	        "slot 3 keeps what was lost of 4 numbers in block 1, and this call has 5 there");
	if (q || gradcomp_coder_all_gather(k, x, x + 16, other, GRADCOMP_F32, &err))
		refused(t, 1, 0, &err, "goes on");
	refused(t, gradcomp_job_free(job, &err), GRADCOMP_ERR_STATE, &err, "coders");
	gradcomp_coder_free(k);
}

typedef struct unlike {
	const char *spec[2], *collective[2];
	uint64_t seed[2];
	atomic_int right;
	const char *words;
} unlike;

static void different_coders(gradcomp_job *job, int rank, int P, void *arg)
{
	unlike *u = arg;
	gradcomp_error err = {0};
	int odd = rank == 1;
	gradcomp_coder_options o = {.struct_size = sizeof o, .collective = u->collective[odd], .seed = u->seed[odd]};
	gradcomp_coder *k;
	gradcomp_status st = gradcomp_coder_create(gradcomp_job_world(job), u->spec[odd], &o, &k, &err);
	(void)P;
	if (st && !k && strstr(err.text, u->words))
		atomic_fetch_add(&u->right, 1);
	else
		printf("# rank %d: %d '%s' should have '%s'\n", rank, (int)st, err.text, u->words);
	/* The job goes on. */
	if (gradcomp_coder_create(gradcomp_job_world(job), "block", NULL, &k, &err))
		printf("# rank %d: %s\n", rank, err.text);
	else
		atomic_fetch_add(&u->right, 1);
	gradcomp_coder_free(k);
}

typedef struct call {
	uint64_t n;
	double scale;
	const char *words;
	gradcomp_dtype dtype;
	uint32_t slot;
	bool gathers, uneven;
} call;

typedef struct strange {
	const call *odd;
	atomic_int right;
} strange;

static void different_calls(gradcomp_job *job, int rank, int P, void *arg)
{
	static const call usual = {.n = 40, .scale = 0.5, .slot = 2};
	strange *s = arg;
	const call *mine = rank == 2 ? s->odd : &usual;
	gradcomp_error err = {0};
	gradcomp_coder *k;
	uint64_t counts[MAX_RANKS];
	static float in[MAX_RANKS][400], out[MAX_RANKS][400];
	for (int r = 0; r < P; r++)
		counts[r] = mine->n + (mine->uneven && r < 2 ? (r ? (uint64_t)-1 : 1) : 0);
	if (gradcomp_coder_create(gradcomp_job_world(job), "block", NULL, &k, &err))
		return;
	gradcomp_status st = mine->gathers
	                             ? gradcomp_coder_all_gather(k, in[rank], out[rank], counts, mine->dtype, &err)
	                             : gradcomp_coder_reduce_scatter(k, in[rank], out[rank], counts, mine->dtype,
	                                                             mine->scale, mine->slot, &err);
	if (st == GRADCOMP_ERR_MISMATCH && strstr(err.text, "rank 2 on ") &&
	    strstr(err.text, mine == &usual ? s->odd->words : mine->words) &&
	    strstr(err.text, "rank 0 calls reduce-scatter of 120 float32 times 0.5, slot 2, blocks of 40,40,40"))
		atomic_fetch_add(&s->right, 1);
	else
		printf("# rank %d: %d '%s' should have '%s'\n", rank, (int)st, err.text, s->odd->words);
	gradcomp_coder_free(k);
}

static void alike(void)
{
	static const unlike cases[] = {
		{.spec = {"block:bits=8", "block:bits=4"}, .words = "makes a coder of 'block:bits=4"},
		{.spec = {"block", "block"}, .collective = {"ring", "direct"}, .words = "+ direct"},
		{.spec = {"block", "block"}, .seed = {1, 2}, .words = "makes a coder with seed 2, rank 0 with 1"},
		{.spec = {"block", "topk"}, .words = "gives no code"},
		{.spec = {"block", "block:bits=5"}, .words = "bits"},
	};
	static const call calls[] = {
		{.gathers = true, .n = 40, .words = "calls all-gather of 120 float32, blocks"},
		{.n = 41, .scale = 0.5, .slot = 2, .words = "reduce-scatter of 123 float32"},
		{.n = 40, .dtype = GRADCOMP_BF16, .scale = 0.5, .slot = 2, .words = "reduce-scatter of 120 bfloat16"},
		{.n = 40, .scale = 0.25, .slot = 2, .words = "times 0.25, slot 2"},
		{.n = 40, .scale = 0.5, .slot = 1, .words = "times 0.5, slot 1"},
		{.n = 40, .scale = 0.5, .slot = 2, .uneven = true, .words = "blocks of 41,39,40"},
		{.n = 0, .scale = 0.5, .slot = 2, .words = "reduce-scatter of 0 float32"},
	};
	const char *const settings[] = {plugin_path_setting(), "gradcomp.log=error", NULL}, *const * same[1] = {
												    settings};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		unlike u = {.seed = {cases[i].seed[0], cases[i].seed[1]}, .words = cases[i].words};
		memcpy(u.spec, cases[i].spec, sizeof u.spec);
		memcpy(u.collective, cases[i].collective, sizeof u.collective);
		run_ranks(3, settings, different_coders, &u);
		is_int(atomic_load(&u.right), 6, "rank 1 is another: %s", u.words);
	}
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		strange s = {.odd = &calls[i]};
		rank_arg results[3] = {0};
		const char *const *each[3] = {same[0], NULL, NULL};
		run_ranks_with(3, each, results, different_calls, &s);
		is_int(atomic_load(&s.right), 3, "rank 2 means another call: %s", s.odd->words);
	}
}

static void cheering(gradcomp_job *job, int rank, int P, void *arg)
{
	atomic_int *right = arg;
	gradcomp_error err = {0};
	gradcomp_coder *k;
	const uint64_t counts[] = {40, 40, 40};
	float in[120] = {0}, out[40];
	(void)P;
	gradcomp_status st = gradcomp_coder_create(gradcomp_job_world(job), "coder:fault=cheers", NULL, &k, &err);
	if (!st)
		st = gradcomp_coder_reduce_scatter(k, in, out, counts, GRADCOMP_F32, 1, GRADCOMP_CODER_NO_SLOT, &err);
	if (st == GRADCOMP_ERR_INTERNAL && strstr(err.text, "compressor 'coder': code() returned 1: 0 or a negative"))
		atomic_fetch_add(right, 1);
	else
		printf("# rank %d: %d '%s'\n", rank, (int)st, err.text);
	gradcomp_coder_free(k);
}

int main(void)
{
	setenv("GRADCOMP_PLUGIN_PATH", strchr(plugin_path_setting(), '=') + 1, 1);
	specs();
	const char *const settings[] = {plugin_path_setting(), NULL};
	told t = {0};
	run_ranks(3, settings, arguments, &t);
	is_int(atomic_load(&t.wrong), 0, "arguments that are wrong are named, and the job goes on");
	alike();
	atomic_int right = 0;
	char path[9000];
	const char *const quiet[] = {path, "gradcomp.log=error", NULL}, *const * each[3] = {quiet, NULL, NULL};
	snprintf(path, sizeof path, "%s:%s/../../tests/plugins", plugin_path_setting(),
	         strchr(plugin_path_setting(), '=') + 1);
	rank_arg results[3] = {0};
	run_ranks_with(3, each, results, cheering, &right);
	is_int(atomic_load(&right), 3, "a status above 0 ends the job with the compressor's name");
	return done_testing();
}
