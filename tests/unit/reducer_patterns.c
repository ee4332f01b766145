/* Every installed compressor through the reducer, over the links: u = a P + what error
 * memories hold, to rounding; the same bits on all ranks; NaN told and survived. Then
 * plugins that break the rules of merged and coded payloads, what error memory holds
 * back, and which collective is taken. */
#include "tests/support/broken_ranks.h"
#include "tests/support/conservation.h"

#include "config/config.h"
#include "plugin/registry.h"

static void run_spec(const char *spec, int P, uint64_t bucket_bytes, int nan_step, const char *const *settings,
                     double apart)
{
	run_spec_on("", spec, P, bucket_bytes, nan_step, settings, apart);
}

static void breaks(const char *spec, gradcomp_status status, const char *text, const char *const *settings)
{
	const char *const *all[MAX_RANKS] = {settings};
	broken *b = calloc(1, sizeof *b);
	rank_arg left[MAX_RANKS];
	int failed = 0, named = 0, right = 0;
	b->spec = spec;
	b->bucket_bytes = 1 << 20;
	run_ranks_with(6, all, left, broken_body, b);
	for (int r = 0; r < 6; r++) {
		failed += b->status[r] != 0;
		right += !status || b->status[r] == status;
		named += strstr(b->text[r], text) != NULL;
	}
	ok(failed == 6 && right == 6 && named == 6, "%s: all ranks fail (%d) with status %d (%d) and \"%s\" (%d)", spec,
	   failed, (int)status, right, text, named);
	if (named != 6)
		printf("# %s\n", b->text[0]);
	free(b);
}

/* Rank 1's plugin puts a NaN into its error memory: the log names the plugin, not the gradient. */
static void blamed(const char *path)
{
	const char *const settings[] = {path, "transport.timeout=20", "gradcomp.log=warn", NULL};
	const char *const *all[MAX_RANKS] = {settings};
	broken *b = calloc(1, sizeof *b);
	rank_arg left[MAX_RANKS];
	char text[4000] = "";
	int own = dup(STDERR_FILENO);
	FILE *log = tmpfile();

	b->spec = "merger:fault=poison";
	b->bucket_bytes = 1 << 20;
	dup2(fileno(log), STDERR_FILENO);
	run_ranks_with(2, all, left, broken_body, b);
	dup2(own, STDERR_FILENO);
	close(own);
	rewind(log);
	text[fread(text, 1, sizeof text - 1, log)] = 0;
	like(text, "step 0: compressor 'merger' has made NaN or Inf of finite gradients, in the error memory of 'w2'",
	     "a NaN that a plugin makes is the plugin's");
	fclose(log);
	free(b);
}

/* The functions below check what error memory holds back. */

static void held_body(gradcomp_job *job, int rank, int P, void *arg)
{
	enum { BIG = 1 << 18 };
	static float grad[4][BIG];
	const uint64_t small = 200, big = BIG;
	gradcomp_tensor_desc desc[2] = {{.name = "small", .dims = &small, .ndim = 1},
	                                {.name = "big", .dims = &big, .ndim = 1}};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk:density=0.1", .bucket_bytes = 1};
	gradcomp_reducer_stats st = {.struct_size = sizeof st};
	gradcomp_error err = {0};
	gradcomp_reducer *red;
	float little[200];
	double u = 0, e = 0, share[2];
	(void)P, (void)arg;
	if (gradcomp_reducer_create(gradcomp_job_world(job), desc, 2, &o, &red, &err)) {
		ok(0, "rank %d: %s", rank, err.text);
		return;
	}
	for (int i = 0; i < 200; i++)
		little[i] = gradient(rank, 0, 0, (uint64_t)i);
	for (uint64_t i = 0; i < BIG; i++)
		grad[rank][i] = gradient(rank, 0, 1, i);
	for (int i = 0; i < 200; i++)
		u += (double)little[i] * little[i];
	for (uint64_t i = 0; i < BIG; i++)
		u += (double)grad[rank][i] * grad[rank][i];
	gradcomp_reducer_ready(red, 0, little, &err);
	gradcomp_reducer_ready(red, 1, grad[rank], &err);
	gradcomp_reducer_wait(red, &err);
	for (uint64_t i = 0; i < reducer_of(red)->eng.layout.numel; i++)
		e += (double)reducer_of(red)->eng.arrays.error[i] * reducer_of(red)->eng.arrays.error[i];
	gradcomp_reducer_get_stats(red, &st);
	share[0] = reducer_of(red)->eng.meter.norms[1].shares;
	share[1] = reducer_of(red)->eng.meter.norms[0].shares;
	double exact = 0, all = 0;
	for (int i = 0; i < 200; i++) {
		double v = gradient(rank, 0, 0, (uint64_t)i), left = reducer_of(red)->eng.arrays.error[BIG + i];
		all += v * v;
		exact += left * left;
	}
	ok(st.error_steps == 1 && st.error_mean == st.error_last && fabs(st.error_last / sqrt(e / u) - 1) < 0.02,
	   "rank %d: sampled %.4f of u held back, %.4f in truth", rank, st.error_last, sqrt(e / u));
	ok(fabs(share[0] / sqrt(exact / all) - 1) < 1e-6, "rank %d: of a small tensor every number counts (%.6f)", rank,
	   share[0]);
	ok(share[1] > 0.5 && share[1] < 1, "rank %d: and the large one has its own (%.4f)", rank, share[1]);
	gradcomp_reducer_free(red);
}

/* The functions below check what a steady step allocates. */

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define COUNTS_ALLOCATIONS 0
#else
#define COUNTS_ALLOCATIONS 1
/* glibc's own names of what stands here in their place, for plugins too. */
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t),
	*__libc_memalign(size_t, size_t);
static int counting, allocations;

static void note_allocation(void)
{
	if (__atomic_load_n(&counting, __ATOMIC_SEQ_CST))
		__atomic_add_fetch(&allocations, 1, __ATOMIC_SEQ_CST);
}

void *malloc(size_t n)
{
	note_allocation();
	return __libc_malloc(n);
}

void *calloc(size_t n, size_t size)
{
	note_allocation();
	return __libc_calloc(n, size);
}

void *realloc(void *p, size_t n)
{
	note_allocation();
	return __libc_realloc(p, n);
}

void *aligned_alloc(size_t alignment, size_t n)
{
	note_allocation();
	return __libc_memalign(alignment, n);
}

typedef struct steady {
	const char *spec;
	int failed;
} steady;

static void steady_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_group *world = gradcomp_job_world(job);
	gradcomp_error err = {0};
	steady *s = arg;
	model m;
	(void)P;
	if (model_open(&m, world, s->spec, 5000, &err)) {
		s->failed = 1;
		return;
	}
	for (int step = 0; step < 12; step++) {
		if (step == 6 || step == 11) {
			gradcomp_barrier(world, &err);
			if (rank == 0)
				__atomic_store_n(&counting, step == 6, __ATOMIC_SEQ_CST);
			gradcomp_barrier(world, &err);
		}
		s->failed |= model_step(&m, rank, step % 3, &err) != 0;
	}
	model_close(&m);
}

static void stays_steady(const char *spec, const char *const *settings)
{
	steady s = {.spec = spec};
	allocations = 0;
	run_ranks(3, settings, steady_body, &s);
	ok(!s.failed && allocations == 0, "%s: 5 steps of 3 ranks allocate nothing (%d times)", spec, allocations);
}
#endif

static void named_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0}, absent;
	const plugin *nccl; /* in builds with CUDA */
	const int with_nccl = !registry_open(job->config, GRADCOMP_KIND_COLLECTIVE, "nccl", &nccl, &absent);
	model m;
	(void)rank, (void)P, (void)arg;
	is_int(model_open(&m, gradcomp_job_world(job), "merger", 1 << 20, &err), GRADCOMP_ERR_UNSUPPORTED,
	       "a collective that was named is not replaced");
	like(err.text, "compressor 'merger' needs a merge tree, which collective 'ring' does not have",
	     "what it lacks is said");
	like(err.text,
	     with_nccl ? "collectives that serve it: auto, nccl, tree" : "collectives that serve it: auto, tree",
	     "and what would do");
}

static void default_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	model m;
	(void)rank, (void)P, (void)arg;
	is_int(model_open(&m, gradcomp_job_world(job), "merger", 1 << 20, &err), GRADCOMP_OK,
	       "a collective that nobody named is one that works");
	is_str(reducer_of(m.red)->eng.coll_ctx.collective->info.name, "auto",
	       "the first that is installed, for what merges");
	model_close(&m);
	is_int(model_open(&m, gradcomp_job_world(job), "coder", 1 << 20, &err), GRADCOMP_OK, "coded sums go over");
	is_str(reducer_of(m.red)->eng.coll_ctx.collective->info.name, "ring", "the default, which can");
	model_close(&m);
}

static int each(void *ctx, const char *name, const char *path, const gradcomp_plugin_info *info, const char *reason)
{
	const struct gradcomp_compressor_v1 *c = (const void *)info;
	const uint32_t here = GRADCOMP_PATTERN_BIT(GRADCOMP_MERGED) | GRADCOMP_PATTERN_BIT(GRADCOMP_CODED);
	const char *const *settings = *(const char *const **)ctx;
	(void)reason;
	if (!c || !strstr(path, "/lib/gradcomp/")) /* not of the tests */
		return 0;
	int merged_or_coded = !!(c->patterns & here);
	double apart = apart_of(c);
	for (int P = merged_or_coded ? 1 : 3; P <= (merged_or_coded ? 6 : 3); P++) {
		run_spec(name, P, 5000, -1, settings, apart);
		run_spec(name, P, 25 << 20, -1, settings, apart);
	}
	run_spec(name, 3, 25 << 20, 2, settings, c->traits & GRADCOMP_TRAIT_PASSES_NONFINITE ? HUGE_VAL : apart);
	return 0;
}

int main(void)
{
	static char path[8400];
	const char *installed = plugin_path_setting();
	size_t n = strlen(installed) - strlen("lib/gradcomp");
	snprintf(path, sizeof path, "%s:%.*stests/plugins", installed, (int)(n - strlen("gradcomp.plugin_path=")),
	         installed + strlen("gradcomp.plugin_path="));
	const char *settings[] = {path, "transport.timeout=20", "gradcomp.log=error", NULL};
	const char *tree[] = {path, "transport.timeout=20", "gradcomp.log=error", "gradcomp.collective=tree", NULL};
	const char *ring[] = {path, "transport.timeout=20", "gradcomp.log=error", "gradcomp.collective=ring", NULL};
	gradcomp_error err;
	config *c;
	model_seed();
	run_ranks(2, settings, held_body, NULL);
	run_ranks(2, settings, default_body, NULL);
	run_ranks(2, ring, named_body, NULL);
	for (int P = 1; P <= 9; P++) {
		run_spec("merger", P, 5000, -1, settings, HUGE_VAL);
		run_spec("coder", P, 5000, -1, settings, HUGE_VAL);
		run_spec("merger", P, 25 << 20, 1, settings, HUGE_VAL);
		run_spec("coder", P, 25 << 20, 1, settings, HUGE_VAL);
	}
	for (int P = 2; P <= 5; P++) {
		run_spec("none", P, 5000, -1, tree, 1e-6);
		run_spec("topk", P, 5000, 1, tree, HUGE_VAL);
	}
#if COUNTS_ALLOCATIONS
	stays_steady("merger", settings);
	stays_steady("coder", settings);
	stays_steady("topk", settings);
	stays_steady("powersgd", settings);
#endif
	breaks("merger:fault=cut", GRADCOMP_ERR_INTERNAL, "compressor 'merger' merged to 1 bytes where it planned",
	       settings);
	breaks("merger:fault=mark", GRADCOMP_ERR_MISMATCH,
	       "what a rank sent in step 0 for the bucket of 'w2' is damaged", settings);
	breaks("merger:fault=other", GRADCOMP_ERR_INTERNAL,
	       "planned payload pattern 1, which is none of those it names", settings);
	breaks("summer:fault=greedy", GRADCOMP_ERR_INTERNAL,
	       "'summer' planned 18446744073709551615 bytes of scratch for", settings);
	breaks("summer:fault=flagged", GRADCOMP_ERR_INTERNAL, "'summer' planned flags 0x201, which has others than 0x7",
	       settings);
	breaks("summer:fault=typeless", GRADCOMP_ERR_INTERNAL, "'summer' planned the mean of elements of type 99",
	       settings);
	breaks("merger:fault=mute", GRADCOMP_ERR_IO,
	       "compressor 'merger': encode() failed in round 0 of step 0, for the bucket of 'w2', and gave no reason",
	       settings);
	breaks("merger:fault=cheers", GRADCOMP_ERR_INTERNAL,
	       "compressor 'merger': encode() returned 1 in round 0 of step 0, for the bucket of 'w2': 0 or a negative",
	       settings);
	breaks("merger:fault=applauds", GRADCOMP_ERR_INTERNAL,
	       "compressor 'merger': merge() returned 1: 0 or a negative status is right", settings);
	breaks("coder:fault=cheers", GRADCOMP_ERR_INTERNAL,
	       "compressor 'coder': code() returned 1: 0 or a negative status is right", settings);
	breaks("coder:fault=mute", GRADCOMP_ERR_IO, "compressor 'coder': code() failed and gave no reason", settings);
	/* The others fail with what they are told. */
	breaks("merger:fault=stillborn", 0, "compressor 'merger': create() failed and gave no reason", settings);
	breaks("coder:fault=cut", GRADCOMP_ERR_MISMATCH, "bytes are no code of", settings);
	breaks("coder:fault=beyond", GRADCOMP_ERR_INTERNAL, "where it promised at most", settings);
	breaks("coder:fault=broad", GRADCOMP_ERR_MISMATCH, "bytes", settings);
	breaks("coder:fault=mark", GRADCOMP_ERR_MISMATCH, "is damaged", settings);
	blamed(path);
	if (config_load(settings, &c, &err)) {
		ok(0, "%s", err.text);
		return done_testing();
	}
	registry_each(c, GRADCOMP_KIND_COMPRESSOR, each, &(const char *const *){settings});
	config_free(c);
	return done_testing();
}
