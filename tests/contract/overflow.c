/* Finite gradients whose sum overflows where sums are coded: the average is NaN on all
 * ranks, what was lost is not kept, and the next steps are as ever. Then gradients whose
 * sum with the error memory overflows: it stays as it was. */
#include <stdbool.h>
#include <float.h>

#include "tests/support/residuals.h"

enum { BIG_STEP = 1, ALL_STEPS = 4, BIG_ONES = 5 };

typedef struct flood {
	const char *spec, *collective;
	int all; /* numbers of a tensor are big, or a few */
	uint64_t bucket_bytes;
	model *models[MAX_RANKS];
	double before[MEMORIES], after[MEMORIES];
	double off;
	int failed[MAX_RANKS], odd; /* calls that failed, as bits; results that are not as they must be */
	uint64_t prints[MAX_RANKS];
	gradcomp_error why[MAX_RANKS];
} flood;

/* The last of three ranks or more gives what hides the overflow of what came before. */
static gradcomp_status big_step(model *m, int rank, int P, int all, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = 0; t < T; t++)
		for (uint64_t i = 0; i < numel(t); i++)
			m->grad[t][i] = gradient(rank, BIG_STEP, t, i);
	for (uint64_t k = 0; k < (all ? numel(5) : BIG_ONES); k++)
		m->grad[5][all ? k : mix(seed + k) % numel(5)] =
			(k % 2 ? -1.0f : 1.0f) * (rank == P - 1 && P > 2 ? -1e38f : 3e38f);
	for (int t = T - 1; !st && t >= 0; t--)
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	return st ? st : gradcomp_reducer_wait(m->red, err);
}

/* The tensor of the big ones is NaN, the others are either all NaN or all finite. */
static bool is_void(const model *m)
{
	int right = 1;
	for (int t = 0; t < T; t++) {
		uint64_t nans = 0, numbers = 0;
		for (uint64_t i = 0; i < numel(t); i++) {
			nans += isnan(m->grad[t][i]) != 0;
			numbers += isfinite(m->grad[t][i]) != 0;
		}
		right &= (nans == numel(t) && (t == 5 || nans)) || (t != 5 && numbers == numel(t));
	}
	return right;
}

static int all_finite(const double *x)
{
	int finite = 1;
	for (int i = 0; i < MEMORIES; i++)
		finite &= isfinite(x[i]) != 0;
	return finite;
}

static void overflows(gradcomp_job *job, int rank, int P, void *arg)
{
	flood *f = arg;
	gradcomp_error *err = &f->why[rank];
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	model m;
	if (model_open_over(&m, gradcomp_job_world(job), f->spec, f->collective, f->bucket_bytes, err)) {
		f->failed[rank] = 1;
		return;
	}
	f->models[rank] = &m;
	for (int s = 0; s < ALL_STEPS && !f->failed[rank]; s++) {
		ranks_wait();
		if (!rank)
			memcpy(f->before, f->after, sizeof f->before);
		gradcomp_status st = s == BIG_STEP ? big_step(&m, rank, P, f->all, err) : model_step(&m, rank, s, err);
		f->failed[rank] |= (st != 0) << 1;
		ranks_wait();
		f->prints[rank] = mix(f->prints[rank] ^ fingerprint(&m));
		if (s == BIG_STEP)
			f->failed[rank] |= !is_void(&m) << 2;
		if (!rank) {
			memories(f->models, P, f->after);
			f->odd |= !all_finite(f->after);
		}
		if (!rank && s != BIG_STEP && reducer_of(m.red)->eng.arrays.memory)
			f->off = fmax(f->off, memories_off(f->models, P, s, f->before, f->after));
		for (uint64_t i = 0; s != BIG_STEP && i < numel(5); i++)
			f->failed[rank] |= !(fabsf(m.grad[5][i]) < 10) << 3;
		ranks_wait();
	}
	gradcomp_reducer_get_stats(m.red, &stats);
	f->failed[rank] |= (stats.nonfinite_steps != 1) << 4;
	model_close(&m);
}

static void overflow_over(const char *spec, const char *collective, int P, int all, uint64_t bucket_bytes,
                          const char *const *settings)
{
	flood *f = calloc(1, sizeof *f);
	int failed = 0, differ = 0;
	f->spec = spec;
	f->collective = collective;
	f->all = all;
	f->bucket_bytes = bucket_bytes;
	run_ranks(P, settings, overflows, f);
	if (f->why[0].status == GRADCOMP_ERR_UNSUPPORTED && f->failed[0] == 1) {
		skip(f->why[0].text, "%s over %s", spec, collective);
		free(f);
		return;
	}
	for (int r = 0; r < P; r++) {
		failed |= f->failed[r];
		differ |= f->prints[r] != f->prints[0];
	}
	ok(!failed && !differ && !f->odd && f->off <= 2e-5,
	   "%s over %s, %d ranks: NaN on all of them, memories finite, and the next steps lose %.1e", spec, collective,
	   P, f->off);
	if (failed || differ || f->odd)
		printf("# %#x, %s%s%s\n", (unsigned)failed, differ ? "ranks differ, " : "",
		       f->odd ? "a memory is not finite, " : "", f->why[0].text);
	free(f);
}

static void with_memory(gradcomp_job *job, int rank, int P, void *arg)
{
	enum { BIG = 400 };
	static float grad[MAX_RANKS][BIG], memory[MAX_RANKS][BIG];
	static const float given[] = {2e38f, 3e38f, -1e38f};
	flood *f = arg;
	const uint64_t big = BIG;
	gradcomp_tensor_desc desc = {.name = "w", .dims = &big, .ndim = 1};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = f->spec, .seed = 5};
	gradcomp_error *err = &f->why[rank];
	gradcomp_reducer *red;
	float *x = grad[rank];
	if (gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &red, err)) {
		f->failed[rank] = 1;
		return;
	}
	for (int s = 0; s < 3; s++) {
		const float *e = reducer_of(red)->eng.arrays.error;
		for (int i = 0; i < BIG; i++)
			x[i] = rank == P - 1 ? given[s] * (1 - (float)i / 8000) : 0;
		memcpy(memory[rank], e, sizeof memory[rank]);
		f->failed[rank] |= (gradcomp_reducer_ready(red, 0, x, err) || gradcomp_reducer_wait(red, err)) << 1;
		for (int i = 0; i < BIG; i++)
			f->failed[rank] |= ((s == 1) != !!isnan(x[i])) << 2 | !isfinite(e[i]) << 3;
		f->failed[rank] |= (s == 1 && memcmp(memory[rank], e, sizeof memory[rank])) << 4;
	}
	gradcomp_reducer_free(red);
}

static void memory_overflow(const char *spec, int P, const char *const *settings)
{
	flood *f = calloc(1, sizeof *f);
	int failed = 0;
	f->spec = spec;
	run_ranks(P, settings, with_memory, f);
	for (int r = 0; r < P; r++)
		failed |= f->failed[r];
	ok(!failed, "%s, %d ranks: what overflows with the error memory is NaN on all of them, and that stays (%#x %s)",
	   spec, P, (unsigned)failed, f->why[0].text);
	free(f);
}

int main(void)
{
	static const char *const collectives[] = {"ring", "direct",         "sparse", "hier:ranks_per_node=2",
	                                          "auto", "ring:chunk=4096"};
	static const char *const specs[] = {"block",
	                                    "block:bits=4,rounding=stochastic,block=32",
	                                    "block:bits=2,block=65536",
	                                    "fp8",
	                                    "fp8:type=e5m2,scales=e8m0,block=32",
	                                    "natural",
	                                    "zfp",
	                                    "fp4:group=32",
	                                    "fp4:type=mx",
	                                    "block:rotate=yes"};
	/* These are codes where the collective sums codes; of a few big numbers they send little. */
	static const char *const instead[] = {"onebit",
	                                      "signsgd",
	                                      "topk:density=0.1",
	                                      "topk:density=0.1,values=bf16",
	                                      "topk:density=0.1,values=block8,indices=delta",
	                                      "topk:density=1"};
	static const int sizes[] = {2, 3, 5};
	const char *const settings[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error", NULL};
	model_seed();
	for (size_t i = 0; i < sizeof specs / sizeof *specs; i++)
		for (size_t k = 0; k < sizeof collectives / sizeof *collectives; k++)
			overflow_over(specs[i], collectives[k], sizes[(i + k) % 3], 0, 5000, settings);
	for (size_t i = 0; i < sizeof instead / sizeof *instead; i++)
		for (size_t p = 0; p < 3; p++)
			overflow_over(instead[i], "direct", sizes[p], 1, 5000, settings);
	/* Tensors beside the one that overflows are NaN in the code alone. */
	const char *const verified[] = {plugin_path_setting(), "transport.timeout=60", "gradcomp.log=error",
	                                "gradcomp.verify=yes", NULL};
	overflow_over("block:bits=2,block=65536", "ring", 3, 0, 1 << 20, verified);
	overflow_over("natural", "direct", 2, 0, 1 << 20, verified);
	overflow_over("onebit", "direct", 3, 1, 1 << 20, verified);
	for (int P = 1; P <= 3; P++) {
		memory_overflow("topk:density=0.01", P, settings);
		memory_overflow("randomk:density=0.01", P, settings);
	}
	return done_testing();
}
