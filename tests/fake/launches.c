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

static double launches(const char *spec, int P, int *failed)
{
	static const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	const outcome *o = run_processes(P, 60, settings, body, (void *)(uintptr_t)spec);
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
		"block:bits=4",
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
		const double few = launches(all[i], FEW, &failed), more = launches(all[i], MORE, &failed);
		ok(!failed && few == more, "%-22s %3.0f launches of %d ranks, %3.0f of %d", all[i], few, FEW, more,
		   MORE);
	}
	return done_testing();
}
