/* How many operators a step puts on the device's streams: as many at eight ranks as at two. */
#include "tests/fake/gpu_model.h"

extern long fake_cuda_launches(void);

enum { STEPS = 3, FEW = 2, MORE = 8 };

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_error err = {0};
	gpu_model m;
	long before = 0;
	(void)P;
	gradcomp_status st =
		gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, arg, "nccl", 1 << 20, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		before = fake_cuda_launches();
		st = gpu_step(&m, rank, s, 0, &err);
	}
	out->number[0] = (double)(fake_cuda_launches() - before);
	out->failed = st != 0;
	snprintf(out->text, sizeof out->text, "%s", err.text);
	if (m.red)
		gpu_model_close(&m);
}

/* One bucket of one matrix, as most of a network is. */
static void one_bucket(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	static const uint64_t dims[] = {256, 256};
	const gradcomp_tensor_desc desc = {.name = "w", .dims = dims, .ndim = 2};
	gradcomp_error err = {0};
	gradcomp_reducer *red = NULL;
	cudaStream_t queue;
	void *grad;
	long before = 0;
	(void)rank, (void)P;
	cuda_must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "a stream");
	cuda_must(cudaMalloc(&grad, sizeof(float) * dims[0] * dims[1]), "device memory");
	cuda_must(cudaMemsetAsync(grad, 0, sizeof(float) * dims[0] * dims[1], queue), "zeroes");
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = arg,
	                                    .collective = "nccl",
	                                    .device = GRADCOMP_CUDA,
	                                    .queue = queue};
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), &desc, 1, &o, &red, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		before = fake_cuda_launches();
		st = gradcomp_reducer_ready(red, 0, grad, &err);
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
		cuda_must(cudaStreamSynchronize(queue), "the stream");
	}
	out->number[0] = (double)(fake_cuda_launches() - before);
	out->failed = st != 0;
	snprintf(out->text, sizeof out->text, "%s", err.text);
	gradcomp_reducer_free(red);
}

static double launches(process_body *what, const char *spec, int P, int *failed)
{
	static const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	const outcome *o = run_processes(P, 60, settings, what, (void *)(uintptr_t)spec);
	for (int r = 0; r < P; r++) {
		if (o[r].failed)
			printf("# rank %d: %s\n", r, o[r].text);
		*failed |= o[r].failed;
	}
	return o[0].number[0];
}

int main(void)
{
	static const char *const all[] = {
		"none",
		"cast:type=bf16",
		"cast:type=bf16,sum=wire",
		"block:bits=4",
		"fp4",
		"fp8",
		"natural",
		"topk:density=0.1",
		"blocktopk:density=0.1",
		"mstopk",
		"dgc",
		"randomk",
		"threshold",
		"lags",
		"onebit",
		"signsgd",
		"terngrad",
		"qsgd",
		"powersgd",
		"acpsgd",
		"lqsgd",
		"dion",
		"demo:chunk=16,k=8",
	};
	for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
		int failed = 0;
		const double few = launches(body, all[i], FEW, &failed), more = launches(body, all[i], MORE, &failed);
		ok(!failed && few == more, "%-22s %3.0f launches of %d ranks, %3.0f of %d", all[i], few, FEW, more,
		   MORE);
	}
	static const struct {
		const char *spec;
		int most;
	} bucket[] = {
		{"none", 3},          {"cast:type=bf16", 8},  {"cast:type=bf16,sum=wire", 4}, {"topk:density=0.01", 9},
		{"block:bits=4", 10}, {"powersgd:rank=4", 23}};
	for (size_t i = 0; i < sizeof bucket / sizeof *bucket; i++) {
		int failed = 0;
		const double count = launches(one_bucket, bucket[i].spec, FEW, &failed);
		ok(!failed && count <= bucket[i].most, "%-22s %3.0f operators of a bucket, %d at most", bucket[i].spec,
		   count, bucket[i].most);
	}
	return done_testing();
}
