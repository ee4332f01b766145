/* Averages that come some steps late, of gradients in GPU memory: as in host memory, over NCCL and
 * through the host; saved and taken up, drained into corrections and into weights; no memory and no
 * wait for the device once it goes; a rank that dies, each launch that fails. */
#include "tests/fake/gpu_model.h"

#include "kinds/delay/delay_internal.h"
#include "reducer/reducer.h"

__attribute__((weak)) extern long fake_cuda_allocations(void);
__attribute__((weak)) extern long fake_cuda_launches(void);
__attribute__((weak)) extern void fake_cuda_fail_launch(long k);
__attribute__((weak)) extern long fake_cuda_waits(void);

struct run {
	const char *compressor, *collective;
	double within;
	long launch; /* that fails on rank 1 in its second step; 0: none */
	gradcomp_dtype dtype;
	uint32_t delay;
	int dies;
};

enum { WORST, ALLOCATED, WAITED, LAUNCHED };
enum { STEPS = 9, SAVED = 5 };

static int told(int rank, const gradcomp_error *err, gradcomp_status st)
{
	if (st)
		printf("# rank %d: %s\n", rank, err->text);
	return st != 0;
}

/* Numbers for all tensors, where the model's gradients are. */
typedef struct numbers {
	void *at[N_TENSORS], *host[N_TENSORS];
} numbers;

static void numbers_open(numbers *n, const gpu_model *m, float first)
{
	for (int t = 0; t < N_TENSORS; t++) {
		cuda_must(cudaHostAlloc(&n->host[t], gpu_bytes(m, t) + 1, 0), "pinned memory");
		n->at[t] = n->host[t];
		gpu_model as = *m;
		as.host[t] = n->host[t];
		for (uint64_t i = 0; i < tensor_numel(t); i++)
			gpu_put(&as, t, i, first * (float)(i % 8));
		if (m->device != GRADCOMP_CUDA)
			continue;
		cuda_must(cudaMalloc(&n->at[t], gpu_bytes(m, t) + 1), "device memory");
		cuda_must(cudaMemcpyAsync(n->at[t], n->host[t], gpu_bytes(m, t), cudaMemcpyDefault, m->queue), "copy");
	}
}

/* Copies what is there now to the host memory of `m`. */
static void numbers_down(const numbers *n, gpu_model *m)
{
	for (int t = 0; t < N_TENSORS; t++)
		cuda_must(cudaMemcpyAsync(m->host[t], n->at[t], gpu_bytes(m, t), cudaMemcpyDefault, m->queue), "copy");
	cuda_must(cudaStreamSynchronize(m->queue), "the stream");
}

static void numbers_close(numbers *n, const gpu_model *m)
{
	for (int t = 0; t < N_TENSORS; t++) {
		cuda_must(cudaFreeHost(n->host[t]), "cudaFreeHost");
		if (m->device == GRADCOMP_CUDA)
			cuda_must(cudaFree(n->at[t]), "cudaFree");
	}
}

/* Copies what is owed, then weights, down into the model's host memory. */
static gradcomp_status drain(gpu_model *m, const numbers *owed, const numbers *weights, gradcomp_error *err)
{
	gradcomp_status st = gradcomp_reducer_drain(m->red, owed->at, weights ? weights->at : NULL, 0.5, err);
	if (!st)
		numbers_down(weights ? weights : owed, m);
	return st;
}

/* Both drained of corrections; a step more; then of weights. */
static void drained(gpu_model *host, gpu_model *dev, int rank, outcome *out)
{
	gradcomp_error err = {0};
	numbers owed[2], weights[2];
	gpu_model *const both[] = {host, dev};
	for (int k = 0; k < 2; k++) {
		numbers_open(&owed[k], both[k], 0.25f);
		numbers_open(&weights[k], both[k], (float)(rank + 1));
		out->failed |= told(rank, &err, drain(both[k], &owed[k], NULL, &err));
	}
	out->number[WORST] = fmax(out->number[WORST], gpu_distance(host, dev));
	for (int k = 0; k < 2 && !out->failed; k++) {
		out->failed |= told(rank, &err, gpu_step(both[k], rank, STEPS, 0, &err));
		out->failed |= told(rank, &err, drain(both[k], &owed[k], &weights[k], &err));
	}
	out->number[WORST] = fmax(out->number[WORST], gpu_distance(host, dev));
	/* Weights are those of all ranks. */
	out->mark = gpu_fingerprint(dev);
	for (int k = 0; k < 2; k++) {
		numbers_close(&owed[k], both[k]);
		numbers_close(&weights[k], both[k]);
	}
}

static void alike(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const struct run *run = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gpu_model host = {0}, dev = {0}, again = {0};
	uint64_t bytes = 0;
	gpu_delay = run->delay;
	gradcomp_status st = gpu_model_open(&host, w, GRADCOMP_HOST, run->dtype, run->compressor, NULL, 5000, &err);
	if (!st)
		st = gpu_model_open(&dev, w, GRADCOMP_CUDA, run->dtype, run->compressor, run->collective, 5000, &err);
	if (!st)
		st = gpu_model_open(&again, w, GRADCOMP_CUDA, run->dtype, run->compressor, run->collective, 5000, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		int poison = s == 2 && rank == P - 1;
		st = gpu_step(&host, rank, s, poison, &err);
		if (!st)
			st = gpu_step(&dev, rank, s, poison, &err);
		out->number[WORST] = fmax(out->number[WORST], gpu_distance(&host, &dev));
		if (!st && s > SAVED) {
			st = gpu_step(&again, rank, s, 0, &err);
			out->failed |= gpu_fingerprint(&again) != gpu_fingerprint(&dev);
		}
		if (s != SAVED || st)
			continue;
		st = gradcomp_reducer_save(dev.red, NULL, 0, &bytes, &err);
		void *state = malloc(bytes);
		if (!st)
			st = gradcomp_reducer_save(dev.red, state, bytes, &bytes, &err);
		if (!st)
			st = gradcomp_reducer_load(again.red, state, bytes, &err);
		free(state);
	}
	out->failed |= told(rank, &err, st) || dev.done != STEPS * N_TENSORS;
	if (!st)
		drained(&host, &dev, rank, out);
	if (again.red)
		gpu_model_close(&again);
	if (dev.red)
		gpu_model_close(&dev);
	if (host.red)
		gpu_model_close(&host);
}

static void check(int P, const char *const *settings, struct run run)
{
	int failed = 0, differ = 0;
	double worst = 0;
	const outcome *o = run_processes(P, 60, settings, alike, &run);
	for (int r = 0; r < P; r++) {
		failed |= o[r].failed;
		differ |= o[r].mark != o[0].mark;
		worst = fmax(worst, o[r].number[WORST]);
	}
	ok(!failed && !differ && worst <= run.within,
	   "%s over %s, %d ranks, %u steps late, %s: as on the host (off by %.2g)%s", run.compressor, run.collective, P,
	   run.delay, run.dtype == GRADCOMP_F32 ? "float" : "bfloat16", worst,
	   differ ? ", drained weights differ" : "");
}

/* Until every average has come: at most two steps are ahead of the device, and the submitter waits there. */
static void come(gradcomp_reducer *red)
{
	delay *d = (delay *)red;
	int done = 0;
	while (!done) {
		usleep(500);
		pthread_mutex_lock(&d->lock);
		done = d->failed || d->n_averaged == d->step;
		pthread_mutex_unlock(&d->lock);
		done = done && device_arena_idle(reducer_of(d->inner)->eng.arrays.arena);
	}
}

/* Steps that go on; what they take of the device. */
static void goes(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const struct run *run = arg;
	gradcomp_error err = {0};
	gpu_model m;
	long allocated = 0, waited = 0, launched = 0;
	(void)P;
	gpu_delay = run->delay;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, run->dtype, run->compressor,
	                                    run->collective, 1 << 20, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		if (s == 4) {
			allocated = fake_cuda_allocations();
			waited = fake_cuda_waits();
			launched = fake_cuda_launches();
		}
		if (rank == 1 && s == 1 && run->launch)
			fake_cuda_fail_launch(run->launch);
		if (rank == 1 && s == 3 && run->dies)
			raise(SIGKILL);
		st = gpu_step(&m, rank, s, 0, &err);
		if (!st)
			come(m.red);
	}
	out->number[ALLOCATED] = (double)(fake_cuda_allocations() - allocated);
	/* One a step is the test's own. */
	out->number[WAITED] = (double)(fake_cuda_waits() - waited - (STEPS - 4));
	out->number[LAUNCHED] = (double)(fake_cuda_launches() - launched) / (STEPS - 4);
	gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
	if (!st) {
		gradcomp_reducer_get_stats(m.red, &stats);
		out->failed |= stats.steps != STEPS || !(stats.exposed_s > 0) || stats.exposed_s > 60;
	}
	if (m.red)
		gpu_model_close(&m);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	gradcomp_error err = {0};
	const int with_nccl = !gradcomp_spec_check("none", "nccl", &err);
	static const struct run runs[] = {
		{"none", "nccl", 1e-5, 0, GRADCOMP_F32, 1, 0},
		{"none", "nccl", 0.05, 0, GRADCOMP_BF16, 3, 0},
		{"topk:density=0.1", "nccl", 1e-5, 0, GRADCOMP_F32, 2, 0},
		{"powersgd:rank=2", "nccl", 1e-3, 0, GRADCOMP_F32, 1, 0},
		{"topk:density=0.1", "ring", 1e-5, 0, GRADCOMP_F32, 2, 0},
		{"lossless", "ring", 1e-5, 0, GRADCOMP_F32, 1, 0},
	};
	test_seed_value = 5;
	for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++)
		if (with_nccl || strcmp(runs[i].collective, "nccl"))
			check(2 + (int)i % 3, settings, runs[i]);
	if (!fake_cuda_allocations || !with_nccl)
		return done_testing();
	for (uint32_t delay = 1; delay <= 2; delay++) {
		struct run run = {
			.compressor = delay == 1 ? "none" : "topk:density=0.1", .collective = "nccl", .delay = delay};
		const outcome *o = run_processes(2, 60, settings, goes, &run);
		ok(!o[0].failed && !o[0].status && !o[1].status && o[0].number[ALLOCATED] == 0 &&
		           o[0].number[WAITED] == 0,
		   "%s, %u steps late: a step takes no memory (%g) and waits for nothing on the device (%g), %g launches %s",
		   run.compressor, delay, o[0].number[ALLOCATED], o[0].number[WAITED], o[0].number[LAUNCHED],
		   o[0].text);
	}
	struct run run = {.compressor = "none", .collective = "nccl", .delay = 1, .dies = 1};
	const outcome *o = run_processes(3, 30, settings, goes, &run);
	ok(!o[0].failed && o[0].status == GRADCOMP_ERR_PEER && strstr(o[0].text, "rank 1"),
	   "a rank that dies is named: \"%s\"", o[0].text);
	run.dies = 0;
	int wrong = 0;
	for (run.launch = 1; run.launch <= 12 && !wrong; run.launch++) {
		o = run_processes(2, 30, settings, goes, &run);
		wrong = o[0].failed || o[1].failed || !o[0].status || o[1].status != GRADCOMP_ERR_IO ||
		        !strstr(o[1].text, "a launch failed: ");
	}
	ok(!wrong, "launch %ld of a step that fails ends it: \"%s\" and \"%s\"", run.launch - 1, o[0].text, o[1].text);
	return done_testing();
}
