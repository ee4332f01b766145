/* How long a reducer's step takes with gradients on a GPU: 2^26 numbers in 16 tensors, or 2^BITS with that
 * argument, over nccl and through pinned host memory, 2 and 4 ranks on one device. */
#include "tests/fake/device_ranks.h"

#include <cuda_runtime_api.h>

enum { TENSORS = 16, STEPS = 8, WARM = 3 };
static uint64_t dims[2] = {4096, 1024};

typedef struct pair {
	const char *compressor, *collective;
} pair;

enum { MS };

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const pair *p = arg;
	const size_t numel = dims[0] * dims[1], bytes = numel * sizeof(float);
	gradcomp_tensor_desc desc[TENSORS];
	gradcomp_error err = {0};
	void *grad[TENSORS];
	gradcomp_reducer *red = NULL;
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = p->compressor,
	                              .collective = p->collective,
	                              .seed = 1,
	                              .device = GRADCOMP_CUDA};
	float *host = malloc(bytes);
	cudaError_t e = cudaSuccess;
	double begin = 0;
	for (size_t i = 0; i < numel; i++)
		host[i] = (float)((i * 2654435761u + (unsigned)rank * 97u) % 1000) - 500;
	for (int t = 0; t < TENSORS; t++) {
		desc[t] = (gradcomp_tensor_desc){.dims = dims, .ndim = 2};
		e = e ? e : cudaMalloc(&grad[t], bytes);
	}
	gradcomp_status st = e ? GRADCOMP_ERR_NOMEM
	                       : gradcomp_reducer_create(gradcomp_job_world(job), desc, TENSORS, &o, &red, &err);
	for (int s = 0; !st && s < WARM + STEPS; s++) {
		for (int t = 0; t < TENSORS; t++)
			cudaMemcpy(grad[t], host, bytes, cudaMemcpyDefault);
		cudaDeviceSynchronize();
		if ((st = gradcomp_barrier(gradcomp_job_world(job), &err)))
			break;
		begin = process_clock();
		for (int t = TENSORS - 1; !st && t >= 0; t--)
			st = gradcomp_reducer_ready(red, (uint32_t)t, grad[t], &err);
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
		if (s >= WARM)
			out->number[MS] += (process_clock() - begin) * 1e3 / STEPS;
	}
	out->status = st;
	out->failed = st != 0;
	if (st)
		printf("# rank %d: %s%s\n", rank, err.text, e ? cudaGetErrorString(e) : "");
	gradcomp_reducer_free(red);
	(void)P;
}

int main(int argc, char **argv)
{
	const int bits = argc > 1 ? atoi(argv[1]) : 26;
	static const pair pairs[] = {
		{"none", "nccl"},
		{"none", "ring"},
		{"block:bits=8", "nccl"},
		{"topk:density=0.01", "nccl"},
		{"topk:density=0.01", "ring"},
		{"powersgd:rank=4", "nccl"},
		{"powersgd:rank=4", "ring"},
		{"onebit", "nccl"},
		{"signsgd", "ring"},
		{"blocktopk:density=0.01", "nccl"},
		{"demo", "nccl"},
		{"dion:rank=4", "nccl"},
		{"block:bits=8", "ring"},
		{"gtopk:density=0.01", "tree"},
	};
	const char *const settings[] = {"gradcomp.log=warn", NULL};
	int wrong = 0;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (bits < 15 || bits > 30) {
		fprintf(stderr, "steps %d: must be 15 to 30\n", bits);
		return 2;
	}
	dims[0] = (uint64_t)1 << (bits - 14);
	for (int P = 2; P <= 4; P += 2)
		for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
			const outcome *o = run_processes(P, 120, settings, body, (void *)(uintptr_t)&pairs[i]);
			double worst = 0;
			int failed = 0;
			for (int r = 0; r < P; r++) {
				failed |= o[r].failed;
				worst = o[r].number[MS] > worst ? o[r].number[MS] : worst;
			}
			wrong += failed;
			if (failed)
				printf("not ok - %d ranks, %s over %s\n", P, pairs[i].compressor, pairs[i].collective);
			else
				printf("figure: a step of 2^%d numbers, %d ranks on one device, %s over %s = %.2f ms\n",
				       bits, P, pairs[i].compressor, pairs[i].collective, worst);
		}
	return wrong != 0;
}
