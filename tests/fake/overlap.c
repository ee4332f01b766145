/* How far compression and exchange of a step overlap, on a fake device on which both take their time: buckets are given
 * spread over a backward pass, with exchange alone taking time, with the device's operators and copies alone, and with
 * both. Prints a table; a run of it by hand says whether a pipeline pays. Its one test is that results come. */
#include "tests/fake/gpu_model.h"

enum { RANKS = 2, BUCKETS = 24, NUMBERS = 1 << 16, WARM = 2, STEPS = 4, APART_MS = 15 };

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	static const uint64_t dims[] = {256, NUMBERS / 256};
	gradcomp_tensor_desc desc[BUCKETS];
	gradcomp_reducer *red;
	gradcomp_error err = {0};
	cudaStream_t queue;
	void *grad[BUCKETS];
	double total = 0;
	(void)rank, (void)P;
	cuda_must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "a stream");
	for (int t = 0; t < BUCKETS; t++) {
		desc[t] = (gradcomp_tensor_desc){.name = "w", .dims = dims, .ndim = 2};
		cuda_must(cudaMalloc(&grad[t], sizeof(float) * NUMBERS), "device memory");
		cuda_must(cudaMemsetAsync(grad[t], 0, sizeof(float) * NUMBERS, queue), "zeroes");
	}
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = arg,
	                                    .collective = "nccl",
	                                    .bucket_bytes = sizeof(float) * NUMBERS,
	                                    .device = GRADCOMP_CUDA,
	                                    .queue = queue};
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), desc, BUCKETS, &o, &red, &err);
	for (int s = 0; !st && s < WARM + STEPS; s++) {
		cuda_must(cudaStreamSynchronize(queue), "the stream");
		st = gradcomp_barrier(gradcomp_job_world(job), &err);
		double began = process_clock();
		for (int t = BUCKETS; !st && t-- > 0;) {
			while (process_clock() < began + 1e-3 * APART_MS * (BUCKETS - 1 - t))
				usleep(100);
			st = gradcomp_reducer_ready(red, (uint32_t)t, grad[t], &err);
		}
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
		cuda_must(cudaStreamSynchronize(queue), "the stream");
		total += s >= WARM ? process_clock() - began : 0;
	}
	out->failed = st != 0;
	out->number[0] = 1e3 * total / STEPS;
	snprintf(out->text, sizeof out->text, "%s", err.text);
	gradcomp_reducer_free(red);
}

int main(void)
{
	static const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	static const struct {
		const char *compressor, *nccl, *cuda; /* bytes/s */
	} all[] = {{"none", "11e6", "60e6"},
	           {"cast", "5.5e6", "110e6"},
	           {"block:bits=4", "1.4e6", "400e6"},
	           {"topk:density=0.01", "0.2e6", "350e6"},
	           {"powersgd:rank=4", "0.32e6", "280e6"}};
	printf("# %d buckets, one every %d ms: ms of a step\n", BUCKETS, APART_MS);
	for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
		double ms[3];
		int failed = 0;
		for (int way = 0; way < 3; way++) {
			setenv("FAKE_NCCL_RATE", way == 1 ? "0" : all[k].nccl, 1);
			setenv("FAKE_CUDA_RATE", way == 0 ? "0" : all[k].cuda, 1);
			const outcome *o =
				run_processes(RANKS, 60, settings, body, (void *)(uintptr_t)all[k].compressor);
			for (int r = 0; r < RANKS; r++)
				failed |= o[r].failed;
			ms[way] = fmax(o[0].number[0], o[1].number[0]);
		}
		ok(!failed, "%-18s exchange alone %4.0f, compression alone %4.0f, both %4.0f", all[k].compressor, ms[0],
		   ms[1], ms[2]);
	}
	return done_testing();
}
