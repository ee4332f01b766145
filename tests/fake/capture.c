/* Streams that a program captures into CUDA graphs beside gradcomp, in the mode that lets no other thread ask
 * the device anything (torch.cuda.graph()): steps go on and no capture is spoiled; a step that would be in a
 * capture is refused, which spoils nothing either. */
#include "tests/fake/gpu_model.h"

struct run {
	const char *compressor, *collective;
	uint32_t delay;
};

/* Captures, one after another, until told to stop. */
typedef struct graphs {
	pthread_t thread;
	int stop, begun, spoiled;
} graphs;

static void *capture_on(void *arg)
{
	graphs *g = arg;
	cudaStream_t s;
	cudaGraph_t graph;
	cuda_must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	while (!__atomic_load_n(&g->stop, __ATOMIC_SEQ_CST)) {
		cuda_must(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), "a capture");
		__atomic_add_fetch(&g->begun, 1, __ATOMIC_SEQ_CST);
		usleep(20000);
		g->spoiled += cudaStreamEndCapture(s, &graph) != cudaSuccess;
	}
	cudaStreamDestroy(s);
	return NULL;
}

static void graphs_open(graphs *g)
{
	*g = (graphs){0};
	if (pthread_create(&g->thread, NULL, capture_on, g))
		exit(1);
	while (!__atomic_load_n(&g->begun, __ATOMIC_SEQ_CST))
		usleep(100);
}

static int graphs_close(graphs *g)
{
	__atomic_store_n(&g->stop, 1, __ATOMIC_SEQ_CST);
	pthread_join(g->thread, NULL);
	return g->spoiled;
}

enum { OFF, SPOILED };
enum { STEPS = 6 };

/* Another thread captures from before the reducer is made until it is gone. */
static void beside(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const struct run *run = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gpu_model host = {0}, dev = {0}, more = {0};
	graphs g;
	(void)P;
	gpu_delay = run->delay;
	gradcomp_status st = gpu_model_open(&host, w, GRADCOMP_HOST, GRADCOMP_F32, run->compressor, NULL, 5000, &err);
	if (!st)
		st = gpu_model_open(&dev, w, GRADCOMP_CUDA, GRADCOMP_F32, run->compressor, run->collective, 5000, &err);
	graphs_open(&g);
	if (!st)
		st = gpu_model_open(&more, w, GRADCOMP_CUDA, GRADCOMP_F32, run->compressor, run->collective, 5000,
		                    &err);
	for (int s = 0; !st && s < STEPS; s++) {
		st = gpu_step(&host, rank, s, 0, &err);
		if (!st)
			st = gpu_step(&dev, rank, s, 0, &err);
		out->number[OFF] = fmax(out->number[OFF], gpu_distance(&host, &dev));
	}
	if (more.red)
		gpu_model_close(&more);
	if (dev.red)
		gpu_model_close(&dev);
	out->number[SPOILED] = graphs_close(&g);
	if (host.red)
		gpu_model_close(&host);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

/* This thread captures itself: while a step is under way, and what is refused. */
static void own(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_error err = {0};
	gpu_model m = {0};
	cudaStream_t s;
	cudaGraph_t graph;
	(void)P, (void)arg;
	gpu_delay = 0;
	cuda_must(cudaStreamCreateWithFlags(&s, cudaStreamNonBlocking), "a stream");
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32,
	                                    "topk:density=0.1", "nccl", 5000, &err);
	if (!st)
		st = gpu_step(&m, rank, 0, 0, &err);
	for (int t = 0; !st && t < N_TENSORS; t++)
		st = gradcomp_reducer_ready(m.red, (uint32_t)t, m.grad[t], &err);
	/* A forward pass is captured while the last averages are still on their way. */
	cuda_must(cudaStreamBeginCapture(s, cudaStreamCaptureModeGlobal), "a capture");
	for (int k = 0; !st && k < 2000 && __atomic_load_n(&m.done, __ATOMIC_SEQ_CST) < 2 * N_TENSORS; k++)
		usleep(1000);
	out->number[SPOILED] += cudaStreamEndCapture(s, &graph) != cudaSuccess;
	/* wait() and follow() would make the graph wait for what is not in it. */
	gradcomp_error why = {0};
	cuda_must(cudaStreamBeginCapture(m.queue, cudaStreamCaptureModeGlobal), "a capture");
	if (!st) {
		out->failed |= gradcomp_reducer_wait(m.red, &why) != GRADCOMP_ERR_UNSUPPORTED ||
		               !strstr(why.text, "CUDA graph");
		printf("# wait: %s\n", why.text);
	}
	out->number[SPOILED] += cudaStreamEndCapture(m.queue, &graph) != cudaSuccess;
	if (!st)
		st = gradcomp_reducer_wait(m.red, &err);
	cuda_must(cudaStreamBeginCapture(m.queue, cudaStreamCaptureModeGlobal), "a capture");
	if (!st)
		out->failed |= gradcomp_reducer_ready(m.red, 0, m.grad[0], &why) != GRADCOMP_ERR_UNSUPPORTED ||
		               !strstr(why.text, "CUDA graph");
	out->number[SPOILED] += cudaStreamEndCapture(m.queue, &graph) != cudaSuccess;
	if (!st)
		st = gpu_step(&m, rank, 2, 0, &err);
	if (m.red)
		gpu_model_close(&m);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

static void check(const char *what, process_body *body, struct run *run)
{
	static const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	const outcome *o = run_processes(2, 60, settings, body, run);
	ok(!o[0].failed && !o[1].failed && !o[0].status && !o[1].status && o[0].number[OFF] + o[1].number[OFF] < 1e-3 &&
	           o[0].number[SPOILED] + o[1].number[SPOILED] == 0,
	   "%s: off by %.2g, %g captures spoiled%s%s", what, fmax(o[0].number[OFF], o[1].number[OFF]),
	   o[0].number[SPOILED] + o[1].number[SPOILED], *o[0].text ? ": " : "", o[0].text);
}

int main(void)
{
	static struct run runs[] = {{"none", "nccl", 0},
	                            {"topk:density=0.1", "nccl", 0},
	                            {"powersgd:rank=2", "nccl", 1},
	                            {"topk:density=0.1", "ring", 2},
	                            {"lossless", "ring", 0},
	                            {"none", "hier", 0}};
	gradcomp_error err = {0};
	char what[120];
	test_seed_value = 5;
	for (size_t i = 0; i < sizeof runs / sizeof runs[0]; i++) {
		if (gradcomp_spec_check(runs[i].compressor, runs[i].collective, &err))
			continue;
		snprintf(what, sizeof what, "another thread captures beside steps, %s over %s, %u late",
		         runs[i].compressor, runs[i].collective, runs[i].delay);
		check(what, beside, &runs[i]);
	}
	if (!gradcomp_spec_check("none", "nccl", &err))
		check("the program's thread captures beside a step, and a step in a capture is refused", own, NULL);
	return done_testing();
}
