/* Several communicators of one device: ranks that open them on two threads, in another order on every rank; and what
 * goes on at the same time, on streams that are late in another order on every rank, or behind callbacks that take
 * their time. The fake's device does one at a time until its peers have come. */
#include "tests/fake/gpu_model.h"

#include "config/spec.h"
#include "plugin/plugin_host.h"
#include "plugin/spec_table.h"

__attribute__((weak)) extern void fake_cuda_hold(cudaStream_t s, int on);

enum { RANKS = 2, LATE_MS = 150 };

static int told(int rank, gradcomp_status st, const gradcomp_error *err)
{
	if (st)
		printf("# rank %d: %s\n", rank, err->text);
	return st != 0;
}

static void doze(int ms)
{
	usleep((useconds_t)ms * 1000);
}

/* An instance of a collective that a thread opens, late, by its first call on device memory: one of no numbers. */
typedef struct opener {
	const struct gradcomp_collective_v1 *c;
	void *on, *memory;
	int late;
	gradcomp_status st;
	gradcomp_error err;
	double came, over;
} opener;

static void *open_it(void *arg)
{
	opener *o = arg;
	doze(o->late);
	o->came = process_clock();
	o->st = o->c->allreduce(o->on, o->memory, 0, GRADCOMP_F32, GRADCOMP_SUM, 1.0, &o->err);
	o->over = process_clock();
	return NULL;
}

static void opens(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	static const log_sink quiet = {GRADCOMP_LOG_ERROR, -1};
	const char *spec_text = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	const gradcomp_links *links[2] = {NULL, NULL};
	opener o[2] = {{0}};
	pthread_t thread[2];
	gradcomp_host host;
	gradcomp_error err = {0};
	cudaStream_t queue;
	config *cf;
	const plugin *p;
	spec of;
	void *memory;
	(void)P;
	plugin_host(&host, &quiet);
	gradcomp_status st = config_load(NULL, &cf, &err);
	if (!st)
		st = spec_resolve(cf, GRADCOMP_KIND_COLLECTIVE, spec_text, &p, &of, &err);
	cuda_must(cudaMalloc(&memory, 64), "memory");
	cuda_must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "a stream");
	for (int k = 0; !st && k < 2; k++) {
		o[k] = (opener){.c = p->collective, .memory = memory, .late = (rank + k) % 2 * LATE_MS};
		st = gradcomp_links_open(w, &links[k], &err);
		if (!st)
			st = o[k].c->create(&host, of.values, links[k], &o[k].on, &err);
		if (!st)
			st = o[k].c->set_queue(o[k].on, queue, &err);
	}
	if (told(rank, st, &err)) {
		out->failed = 1;
		return;
	}
	for (int k = 0; k < 2; k++)
		pthread_create(&thread[k], NULL, open_it, &o[k]);
	for (int k = 0; k < 2; k++) {
		pthread_join(thread[k], NULL);
		out->failed |= told(rank, o[k].st, &o[k].err);
		/* Neither waits for the other. */
		out->number[k] = o[k].over - o[k].came;
	}
	snprintf(out->text, sizeof out->text, "%s", o[o[0].st == GRADCOMP_OK].err.text);
	for (int k = 0; k < 2; k++) {
		o[k].c->destroy(o[k].on);
		gradcomp_links_close(w, links[k]);
	}
	spec_clear(&of);
	config_free(cf);
	cudaFree(memory);
	cudaStreamDestroy(queue);
}

/* A reducer of two tensors, a bucket each, whose callback takes its time for the first of them that is done. */
enum { TENSORS = 2, NUMBERS = 4096 };
typedef struct model {
	gradcomp_reducer *red;
	cudaStream_t queue;
	float *host[TENSORS]; /* pinned */
	void *grad[TENSORS];
	int slow, entered; /* ms; the callback has begun */
} model;

static void slow_done(void *ctx, uint32_t tensor, gradcomp_status status, const gradcomp_error *err)
{
	model *m = ctx;
	(void)status, (void)err;
	if (tensor != TENSORS - 1 || !m->slow)
		return;
	__atomic_store_n(&m->entered, 1, __ATOMIC_SEQ_CST);
	doze(m->slow);
}

static gradcomp_status model_open(model *m, gradcomp_group *g, const char *compressor, const char *collective,
                                  gradcomp_error *err)
{
	static const uint64_t dims[] = {NUMBERS};
	static const gradcomp_tensor_desc desc[TENSORS] = {{.name = "a", .dims = dims, .ndim = 1},
	                                                   {.name = "b", .dims = dims, .ndim = 1}};
	*m = (model){0};
	cuda_must(cudaStreamCreateWithFlags(&m->queue, cudaStreamNonBlocking), "a stream");
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = compressor,
	                                    .collective = collective,
	                                    .bucket_bytes = sizeof(float) * NUMBERS,
	                                    .done = slow_done,
	                                    .ctx = m,
	                                    .device = GRADCOMP_CUDA,
	                                    .queue = m->queue};
	for (int t = 0; t < TENSORS; t++) {
		void *p;
		cuda_must(cudaHostAlloc(&p, sizeof(float) * NUMBERS, 0), "pinned memory");
		m->host[t] = p;
		cuda_must(cudaMalloc(&m->grad[t], sizeof(float) * NUMBERS), "device memory");
	}
	return gradcomp_reducer_create(g, desc, TENSORS, &o, &m->red, err);
}

/* The last tensor comes first. */
static gradcomp_status model_give(model *m, int t, int rank, gradcomp_error *err)
{
	for (int i = 0; i < NUMBERS; i++)
		m->host[t][i] = (float)(rank + i % 7);
	cuda_must(cudaMemcpyAsync(m->grad[t], m->host[t], sizeof(float) * NUMBERS, cudaMemcpyDefault, m->queue),
	          "copy");
	return gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
}

static gradcomp_status model_give_all(model *m, int rank, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = TENSORS; !st && t-- > 0;)
		st = model_give(m, t, rank, err);
	return st;
}

/* Ends the step; returns how many numbers are not the mean of both ranks. */
static int model_end(model *m, gradcomp_status *st, gradcomp_error *err)
{
	int wrong = 0;
	if (!*st)
		*st = gradcomp_reducer_wait(m->red, err);
	for (int t = 0; t < TENSORS; t++)
		cuda_must(cudaMemcpyAsync(m->host[t], m->grad[t], sizeof(float) * NUMBERS, cudaMemcpyDefault, m->queue),
		          "copy");
	cuda_must(cudaStreamSynchronize(m->queue), "the stream");
	for (int t = 0; t < TENSORS; t++)
		for (int i = 0; i < NUMBERS; i++)
			wrong += fabsf(m->host[t][i] - (float)(0.5 + i % 7)) > 1e-6f;
	return wrong;
}

static void model_close(model *m)
{
	gradcomp_reducer_free(m->red);
	for (int t = 0; t < TENSORS; t++) {
		cuda_must(cudaFreeHost(m->host[t]), "cudaFreeHost");
		cuda_must(cudaFree(m->grad[t]), "cudaFree");
	}
	cudaStreamDestroy(m->queue);
}

/* Lets go of streams after a while. */
static void *let_go(void *arg)
{
	doze(LATE_MS);
	for (cudaStream_t *s = arg; *s; s++)
		fake_cuda_hold(*s, 0);
	return NULL;
}

/* Two reducers, and a collective of the group, whose gradients and numbers are late on another stream on every
 * rank. */
static void late_streams(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	model m[2];
	pthread_t thread;
	cudaStream_t queue, held[4] = {0};
	void *sum, *seen;
	int wrong = 0;
	gradcomp_status st = model_open(&m[0], w, "none", arg, &err);
	(void)P;
	if (!st)
		st = model_open(&m[1], w, "topk:density=1", arg, &err);
	cuda_must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "a stream");
	cuda_must(cudaMalloc(&sum, sizeof(int)), "device memory");
	cuda_must(cudaHostAlloc(&seen, sizeof(int), 0), "pinned memory");
	const gradcomp_memory_options where = {.struct_size = sizeof where, .device = GRADCOMP_CUDA, .queue = queue};
	for (int step = 0; !st && step < 4; step++) {
		*(int *)seen = 1;
		cuda_must(cudaMemcpyAsync(sum, seen, sizeof(int), cudaMemcpyDefault, queue), "copy");
		/* In the first step all meet. */
		const bool late = step && fake_cuda_hold;
		held[0] = m[rank].queue;
		held[1] = step == 3 ? queue : NULL;
		for (int k = 0; late && held[k]; k++)
			fake_cuda_hold(held[k], 1);
		if (late)
			pthread_create(&thread, NULL, let_go, held);
		st = model_give_all(&m[0], rank, &err);
		if (!st && step != 2)
			st = model_give_all(&m[1], rank, &err);
		if (!st && step != 1)
			st = gradcomp_allreduce_on(w, &where, sum, 1, GRADCOMP_I32, GRADCOMP_SUM, &err);
		if (!st && step == 2)
			st = model_give_all(&m[1], rank, &err);
		wrong += model_end(&m[0], &st, &err) + model_end(&m[1], &st, &err);
		if (late)
			pthread_join(thread, NULL);
	}
	out->failed = told(rank, st, &err) || wrong;
	snprintf(out->text, sizeof out->text, "%d wrong, %.500s", wrong, err.text);
	model_close(&m[0]);
	model_close(&m[1]);
	cudaFree(sum);
	cudaFreeHost(seen);
}

/* A reducer that is busy in a callback on one rank, while it has a bucket, and then another one has, too. */
static void slow_callbacks(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	model m[2];
	int wrong = 0;
	gradcomp_status st = model_open(&m[0], w, "none", arg, &err);
	(void)P;
	if (!st)
		st = model_open(&m[1], w, "none", arg, &err);
	for (int step = 0; !st && step < 3; step++) {
		m[0].entered = 0;
		m[0].slow = step == 1 && rank ? 2 * LATE_MS : 0;
		st = model_give(&m[0], 1, rank, &err);
		while (!st && m[0].slow && !__atomic_load_n(&m[0].entered, __ATOMIC_SEQ_CST))
			doze(1);
		if (!st)
			st = model_give(&m[0], 0, rank, &err);
		if (!rank)
			doze(LATE_MS);
		if (!st)
			st = model_give_all(&m[1], rank, &err);
		wrong += model_end(&m[0], &st, &err) + model_end(&m[1], &st, &err);
	}
	out->failed = told(rank, st, &err) || wrong;
	snprintf(out->text, sizeof out->text, "%d wrong, %.500s", wrong, err.text);
	model_close(&m[0]);
	model_close(&m[1]);
}

/* One of two threads, each of which has a reducer; they begin in another order on every rank. */
typedef struct stepper {
	model m;
	int rank, late, wrong;
	gradcomp_status st;
	gradcomp_error err;
} stepper;

static void *step_it(void *arg)
{
	stepper *s = arg;
	for (int step = 0; !s->st && step < 3; step++) {
		doze(s->late);
		s->st = model_give_all(&s->m, s->rank, &s->err);
		s->wrong += model_end(&s->m, &s->st, &s->err);
	}
	return NULL;
}

static void two_threads(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	stepper s[2] = {{.rank = rank, .late = rank * 30}, {.rank = rank, .late = !rank * 30}};
	pthread_t thread[2];
	gradcomp_status st = GRADCOMP_OK;
	(void)P;
	for (int k = 0; !st && k < 2; k++)
		st = model_open(&s[k].m, w, k ? "powersgd:rank=1" : "none", arg, &err);
	out->failed = told(rank, st, &err);
	for (int k = 0; !st && k < 2; k++)
		pthread_create(&thread[k], NULL, step_it, &s[k]);
	for (int k = 0; !st && k < 2; k++) {
		pthread_join(thread[k], NULL);
		out->failed |= told(rank, s[k].st, &s[k].err) || s[k].wrong;
	}
	for (int k = 0; k < 2; k++)
		model_close(&s[k].m);
}

static void try(process_body *body, const char *what, const char *arg)
{
	static const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	const outcome *o = run_processes(RANKS, 30, settings, body, (void *)(uintptr_t)arg);
	int failed = 0;
	for (int r = 0; r < RANKS; r++)
		failed |= o[r].failed;
	ok(!failed, "%s, %s", arg, what);
	for (int r = 0; failed && r < RANKS; r++)
		printf("# rank %d: failed %d \"%s\"\n", r, o[r].failed, o[r].text);
}

int main(void)
{
	test_seed_value = 3;
	try(opens, "two instances are opened on two threads, in another order on every rank", "nccl:timeout=5");
	try(opens, "two instances are opened on two threads, in another order on every rank",
	    "hier:ranks_per_node=1,timeout=5");
	static const char *const collectives[] = {"nccl:timeout=5", "hier:ranks_per_node=1,timeout=5"};
	for (int k = 0; k < 2; k++) {
		try(late_streams, "two reducers and a group, on streams that are late in another order on every rank",
		    collectives[k]);
		try(two_threads, "two reducers on two threads, which begin steps in another order on every rank",
		    collectives[k]);
		try(slow_callbacks, "two reducers, one of which is slow on one rank", collectives[k]);
	}
	return done_testing();
}
