/* The reducer, black-box: means against float64, the same bits on all ranks,
 * nothing lost through error memory, resume to the bit, non-finite gradients,
 * and what it refuses. */
#include "tests/support/small_model.h"

#include <math.h>

struct run {
	const char *spec;
	uint64_t bucket_bytes, fingerprint[MAX_RANKS];
	double worst[MAX_RANKS]; /* distance from the float64 mean */
	int failed[MAX_RANKS], poison;
};

static void mean_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	model m;
	int steps = 3;
	if (model_open(&m, gradcomp_job_world(job), run->spec, run->bucket_bytes, &err)) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		run->failed[rank] = 1;
		return;
	}
	for (int s = 0; s < steps && !run->failed[rank]; s++) {
		run->failed[rank] = model_step(&m, rank, s, &err) != 0;
		for (int t = 0; t < T; t++)
			for (uint64_t i = 0; i < numel(t); i++) {
				double want = 0, off;
				for (int r = 0; r < P; r++)
					want += (double)gradient(r, s, t, i) / P;
				off = fabs(m.grad[t][i] - want);
				if (!(off <= run->worst[rank]))
					run->worst[rank] = off;
			}
		run->fingerprint[rank] = mix(run->fingerprint[rank] ^ fingerprint(&m));
	}
	run->failed[rank] |= m.done != steps * T;
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&m);
}

/* Gradients once, then zeroes until the error memory is empty: the sum of what
 * came out is the mean of what went in. With `poison`, a NaN step in between. */
static void conserve_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	model m;
	double *sum[T];
	if (model_open(&m, gradcomp_job_world(job), run->spec, run->bucket_bytes, &err)) {
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
		run->failed[rank] = 1;
		return;
	}
	for (int t = 0; t < T; t++)
		sum[t] = calloc(numel(t) + 1, sizeof *sum[t]);
	for (int s = 0; s < 60 && !run->failed[rank]; s++) {
		if (s == 1 && run->poison) {
			int nans = 0, others = 0;
			for (int t = 0; t < T; t++)
				memset(m.grad[t], 0, numel(t) * sizeof(float));
			if (rank == P - 1)
				m.grad[4][7] = NAN;
			for (int t = 0; t < T; t++)
				gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err);
			run->failed[rank] |= gradcomp_reducer_wait(m.red, &err) != 0;
			for (uint64_t i = 0; i < numel(4); i++)
				nans += isnan(m.grad[4][i]) != 0;
			for (uint64_t i = 0; i < numel(0); i++)
				others += isnan(m.grad[0][i]) != 0;
			run->failed[rank] |= nans != (int)numel(4);
			/* Another bucket does not notice. */
			run->failed[rank] |= run->bucket_bytes == 1 && others;
			for (int t = 0; t < T; t++)
				for (uint64_t i = 0; i < numel(t); i++)
					sum[t][i] += isnan(m.grad[t][i]) ? 0 : m.grad[t][i];
			continue;
		}
		run->failed[rank] |= model_step(&m, rank, s ? -1 : 0, &err) != 0;
		for (int t = 0; t < T; t++)
			for (uint64_t i = 0; i < numel(t); i++)
				sum[t][i] += m.grad[t][i];
	}
	for (int t = 0; t < T; t++) {
		for (uint64_t i = 0; i < numel(t); i++) {
			double want = 0, off;
			for (int r = 0; r < P; r++)
				want += (double)gradient(r, 0, t, i) / P;
			off = fabs(sum[t][i] - want);
			if (!(off <= run->worst[rank]))
				run->worst[rank] = off;
		}
		free(sum[t]);
	}
	gradcomp_reducer_stats st = {.struct_size = sizeof st};
	gradcomp_reducer_get_stats(m.red, &st);
	run->failed[rank] |= st.nonfinite_steps != (uint64_t)run->poison;
	run->fingerprint[rank] = fingerprint(&m);
	if (err.status)
		fprintf(stderr, "# rank %d: %s\n", rank, err.text);
	model_close(&m);
}

static void resume_body(gradcomp_job *job, int rank, int P, void *arg)
{
	struct run *run = arg;
	gradcomp_error err = {0};
	model a, b;
	uint64_t bytes = 0, mark;
	(void)P;
	run->failed[rank] = model_open(&a, gradcomp_job_world(job), run->spec, run->bucket_bytes, &err) ||
	                    model_open(&b, gradcomp_job_world(job), run->spec, run->bucket_bytes * 2, &err);
	for (int s = 0; s < 4; s++)
		run->failed[rank] |= model_step(&a, rank, s, &err) != 0;
	run->failed[rank] |= gradcomp_reducer_save(a.red, NULL, 0, &bytes, &err) != 0;
	unsigned char *state = malloc(bytes);
	run->failed[rank] |= gradcomp_reducer_save(a.red, state, bytes, &bytes, &err) != 0;

	state[bytes - 1] ^= 1;
	run->failed[rank] |= gradcomp_reducer_load(b.red, state, bytes, &err) != GRADCOMP_ERR_INVALID;
	state[bytes - 1] ^= 1;
	run->failed[rank] |= gradcomp_reducer_load(b.red, state, bytes - 1, &err) != GRADCOMP_ERR_INVALID;
	run->failed[rank] |= gradcomp_reducer_load(b.red, state, bytes, &err) != 0;
	free(state);
	for (int s = 4; s < 7; s++) {
		run->failed[rank] |= model_step(&a, rank, s, &err) != 0;
		mark = fingerprint(&a);
		run->failed[rank] |= model_step(&b, rank, s, &err) != 0;
		/* Flat compressors select per bucket, so only equal buckets compare. */
		run->failed[rank] |= run->bucket_bytes > 100000 && mark != fingerprint(&b);
	}
	model_close(&a);
	model_close(&b);
}

static void misuse_body(gradcomp_job *job, int rank, int P, void *arg)
{
	gradcomp_error err = {0};
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_reducer *red = NULL;
	gradcomp_tensor_desc d = {.name = "w", .dims = dims[5], .ndim = 2};
	model m;
	(void)arg;
	is_int(gradcomp_reducer_create(w, &d, 0, NULL, &red, &err), GRADCOMP_ERR_INVALID, "no tensors");
	d.dtype = GRADCOMP_I32;
	is_int(gradcomp_reducer_create(w, &d, 1, NULL, &red, &err), GRADCOMP_ERR_INVALID, "integer gradients");
	if (rank)
		like(err.text, "float32, float16 or bfloat16", "are refused with what would be right");
	d.dtype = GRADCOMP_F32;
	uint64_t huge[2] = {(uint64_t)1 << 31, 8};
	gradcomp_reducer_options topk = {.struct_size = sizeof topk, .compressor = "topk:density=0.01"};
	d.dims = huge;
	is_int(gradcomp_reducer_create(w, &d, 1, &topk, &red, &err), GRADCOMP_ERR_RANGE, "2^34 elements under topk");
	like(err.text, "'w' has 17179869184 elements", "name the tensor and its size");
	d.dims = dims[5];
	d.ndim = rank == P - 1 ? 2 : 1;
	is_int(gradcomp_reducer_create(w, &d, 1, NULL, &red, &err), GRADCOMP_ERR_MISMATCH,
	       "ranks that disagree on a tensor");
	char want[64];
	snprintf(want, sizeof want, "rank %d on ", P - 1);
	like(err.text, want, "are named");
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = rank == 1 ? "cast:type=fp16" : "none"};
	d.ndim = 2;
	is_int(gradcomp_reducer_create(w, &d, 1, &o, &red, &err), GRADCOMP_ERR_MISMATCH,
	       "ranks that disagree on the SPEC");
	like(err.text, "cast", "with both SPECs");
	o.compressor = rank == 1 ? "nosuch" : "none";
	is_int(gradcomp_reducer_create(w, &d, 1, &o, &red, &err), rank == 1 ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_PEER,
	       "one rank's missing plugin is everybody's error");

	is_int(model_open(&m, w, "none", 1, &err), GRADCOMP_OK, "after all of that the job still works");
	is_int(gradcomp_reducer_ready(m.red, T, m.grad[0], &err), GRADCOMP_ERR_INVALID, "a tensor that is none");
	is_int(gradcomp_reducer_ready(m.red, 5, NULL, &err), GRADCOMP_ERR_INVALID, "a NULL gradient");
	is_int(gradcomp_reducer_ready(m.red, 5, m.grad[5], &err), GRADCOMP_OK, "the first tensor");
	is_int(gradcomp_reducer_wait(m.red, &err), GRADCOMP_ERR_STATE, "waiting for a step that lacks tensors");
	like(err.text, "tensor 4 'conv' is missing", "names one");
	for (int t = 4; t >= 0; t--)
		gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err);
	is_int(gradcomp_reducer_wait(m.red, &err), GRADCOMP_OK, "the step ends when they come");
	model_close(&m);
}

static void check(int P, const char *const *settings, const char *what, struct run *run, double tolerance,
                  void (*body)(gradcomp_job *, int, int, void *))
{
	int failed = 0, differ = 0;
	double worst = 0;
	run_ranks(P, settings, body, run);
	for (int r = 0; r < P; r++) {
		failed |= run->failed[r];
		differ |= run->fingerprint[r] != run->fingerprint[0];
		worst = worst > run->worst[r] ? worst : run->worst[r];
	}
	ok(!failed && !differ && worst <= tolerance, "%s: %s, %d ranks, buckets of %llu bytes (off by at most %.2g)",
	   what, run->spec, P, (unsigned long long)run->bucket_bytes, worst);
	if (failed || differ)
		printf("# %s%s\n", failed ? "a call failed; " : "", differ ? "ranks differ" : "");
}

int main(void)
{
	static const uint64_t buckets[] = {1, 5000, 25 << 20};
	const char *settings[] = {plugin_path_setting(), "transport.timeout=20", "gradcomp.log=error", NULL};
	model_seed();
	for (int P = 1; P <= 5; P++)
		for (int k = 0; k < 3; k++) {
			check(P, settings, "mean", &(struct run){.spec = "none", .bucket_bytes = buckets[k]}, 1e-6,
			      mean_body);
			check(P, settings, "mean", &(struct run){.spec = "cast:type=fp16", .bucket_bytes = buckets[k]},
			      2e-3, mean_body);
			check(P, settings, "mean", &(struct run){.spec = "cast:type=bf16", .bucket_bytes = buckets[k]},
			      2e-2, mean_body);
			check(P, settings, "nothing lost",
			      &(struct run){.spec = "topk:density=0.1", .bucket_bytes = buckets[k]}, 1e-6,
			      conserve_body);
			check(P, settings, "nothing lost",
			      &(struct run){.spec = "powersgd:rank=4", .bucket_bytes = buckets[k]}, 1e-5,
			      conserve_body);
		}
	/* Several rounds, rounds that come and go, whole tensors among parts, own momentum.
	 * Where ranks' errors differ, quantised factors hold a little of them back. */
	static const struct {
		const char *spec;
		double within;
	} others[] = {{"powersgd:rank=2,restart=3", 1e-5},
	              {"acpsgd:rank=4", 1e-5},
	              {"lqsgd:rank=4", 5e-3},
	              {"dgc:density=0.1,momentum=0", 1e-5},
	              {"lags:adaptive=yes,measure_steps=5,density=0.2,max_ratio=10", 1e-5}};
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		for (int k = 0; k < 3; k++) {
			struct run run = {.spec = others[i].spec, .bucket_bytes = buckets[k]};
			check(3, settings, "nothing lost", &run, others[i].within, conserve_body);
			run = (struct run){.spec = others[i].spec, .bucket_bytes = buckets[k], .poison = 1};
			check(2, settings, "a NaN on one rank", &run, others[i].within, conserve_body);
			run = (struct run){.spec = others[i].spec, .bucket_bytes = buckets[k]};
			if (i < 4 && k)
				check(2, settings, "resume", &run, 0, resume_body);
		}
	for (int k = 0; k < 2; k++) {
		check(4, settings, "a NaN on one rank",
		      &(struct run){.spec = "topk:density=0.1", .bucket_bytes = buckets[k], .poison = 1}, 1e-6,
		      conserve_body);
		check(3, settings, "a NaN on one rank",
		      &(struct run){.spec = "powersgd:rank=4", .bucket_bytes = buckets[k], .poison = 1}, 1e-5,
		      conserve_body);
	}
	for (int k = 1; k < 3; k++) {
		check(3, settings, "resume", &(struct run){.spec = "topk:density=0.1", .bucket_bytes = buckets[k]}, 0,
		      resume_body);
		check(3, settings, "resume", &(struct run){.spec = "powersgd:rank=2", .bucket_bytes = buckets[k]}, 0,
		      resume_body);
	}
	run_ranks(3, settings, misuse_body, NULL);
	return done_testing();
}
