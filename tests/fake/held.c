/* A stream of the program's that has work which does not end before gradcomp's
 * step has: no step waits for the whole device, not the first one either. CUDA
 * does where it loads a kernel, frees memory or pins it. */
#include "tests/fake/gpu_model.h"

__attribute__((weak)) extern void fake_cuda_hold(cudaStream_t s, int on);

static void beside(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const char *const *spec = arg;
	gradcomp_error err = {0};
	gpu_model m = {0};
	cudaStream_t s;
	void *p;
	(void)P;
	cuda_must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	cuda_must(cudaMalloc(&p, 16), "device memory");
	gradcomp_status st =
		gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, spec[0], spec[1], 5000, &err);
	fake_cuda_hold(s, 1);
	cuda_must(cudaMemsetAsync(p, 0, 16, s), "work");
	for (int step = 0; !st && step < 4; step++)
		st = gpu_step(&m, rank, step, 0, &err);
	fake_cuda_hold(s, 0);
	if (m.red)
		gpu_model_close(&m);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

int main(void)
{
	static const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	static const char *const specs[][2] = {{"none", "nccl"},
	                                       {"cast", "nccl"},
	                                       {"topk:density=0.1", "nccl"},
	                                       {"powersgd:rank=2", "nccl"},
	                                       {"block:bits=4", "nccl"},
	                                       {"gtopk:density=0.1", "nccl"},
	                                       {"block:bits=4", "hier:ranks_per_node=1"},
	                                       {"qsgd", "nccl"},
	                                       {"topk:density=0.1", "hier:ranks_per_node=2"}};
	gradcomp_error err = {0};
	test_seed_value = 5;
	if (!fake_cuda_hold || gradcomp_spec_check("none", "nccl", &err)) {
		printf("1..0 # SKIP this needs the fake device and the fake NCCL\n");
		return 0;
	}
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
		const outcome *o = run_processes(2, 20, settings, beside, (void *)(uintptr_t)specs[i]);
		ok(!o[0].failed && !o[1].failed && !o[0].status && !o[1].status,
		   "%s over %s: steps end beside work that does not%s %s", specs[i][0], specs[i][1],
		   o[0].failed == -SIGKILL ? ": they hang" : "", o[0].text);
	}
	return done_testing();
}
