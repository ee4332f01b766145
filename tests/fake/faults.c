/* Makes go wrong what goes wrong with GPUs: a rank that dies in a collective of NCCL's, or never comes to it, or
 * gives up elsewhere; no device, no memory on it, damaged payloads. Every other rank gets an error that says so,
 * soon; nothing hangs. */
#include "tests/fake/arena.h"
#include "tests/support/pace.h"

enum { TOOK, OPEN /* communicators, when all is closed */, SLEPT };
enum { DIES_AFTER_MS = 300 };

/* The fake's; on a real device there is none, and what needs a fake is passed over. */
__attribute__((weak)) extern long fake_cuda_allocations(void);
__attribute__((weak)) extern long fake_cuda_mallocs(void);
__attribute__((weak)) extern long fake_cuda_launches(void);
__attribute__((weak)) extern void fake_cuda_fail_launch(long k);
__attribute__((weak)) extern long fake_cuda_waits(void);
__attribute__((weak)) extern void fake_cuda_hold(cudaStream_t s, int on);

typedef struct fault {
	const char *what;
	const char *compressor, *collective;
	const char *name, *value; /* a variable of the environment */
	enum {
		DIES,
		DIES_BEHIND,
		DIES_EARLY,
		DIES_DIVIDING,
		STAYS_AWAY,
		GIVES_UP,
		NOTHING
	} does;     /* rank 1, in its third step */
	int status; /* 0: it works */
	/* DIES_DIVIDING: when all ranks' communicator is split for this time, from 0; -1: when it is made */
	const char *split;
	const char *says;  /* the error of all others */
	const char *waits; /* and of at least one: another may hear of it at its next call */
	double within;     /* seconds */
} fault;

static void leave(outcome *out, gradcomp_status st, const gradcomp_error *err)
{
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err->text : "");
}

/* All of a step, which the device does not come to the end of, and one gradient of the next. Who waits for the
 * device now gives no more, so what is there is looked after without it. */
static gradcomp_status go_ahead(const gradcomp_job *job, gpu_model *m, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (int t = 0; !st && t < N_TENSORS; t++)
		st = gradcomp_reducer_ready(m->red, (uint32_t)t, m->grad[t], err);
	if (!st)
		st = gradcomp_reducer_wait(m->red, err);
	/* Its threads have come to rest. */
	usleep(30000);
	if (!st)
		st = gradcomp_reducer_ready(m->red, 0, m->grad[0], err);
	if (st)
		return st;
	cudaStreamSynchronize(m->queue);
	double since = process_clock();
	while (!gradcomp_job_check(job, NULL) && process_clock() - since < 10)
		usleep(1000);
	return gradcomp_reducer_ready(m->red, 1, m->grad[1], err);
}

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const fault *f = arg;
	gradcomp_error err = {0};
	gpu_model m;
	double since = process_clock();
	(void)P;
	if (f->does == DIES_EARLY) {
		gradcomp_barrier(gradcomp_job_world(job), &err);
		if (rank == 1)
			raise(SIGKILL);
	}
	if (f->does == DIES_DIVIDING && rank == 1)
		setenv("FAKE_NCCL_DIES_AT_SPLIT", f->split, 1);
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, f->compressor,
	                                    f->collective, 5000, &err);
	for (int s = 0; !st && s < 6; s++) {
		/* A failure that ends the second of two steps' work is the next call's error. */
		if (s != 3)
			since = process_clock();
		if (s == 2 && rank == 1 && (f->does == DIES || f->does == DIES_BEHIND)) {
			out->number[SLEPT] = 1e-3 * DIES_AFTER_MS * pace();
			usleep((useconds_t)(1e6 * out->number[SLEPT])); /* the others wait for it by now */
			raise(SIGKILL);
		}
		if (s == 2 && rank == 1 && f->does == STAYS_AWAY) {
			/* Until the others have had enough. */
			while (!st && process_clock() - since < 20) {
				usleep(20000);
				st = gradcomp_reducer_wait(m.red, &err);
			}
			break;
		}
		if (s == 2 && rank == 1 && f->does == GIVES_UP) {
			gradcomp_reducer_ready(m.red, 0, m.grad[0], &err);
			gpu_model_close(&m);
			return;
		}
		if (s == 2 && f->does == DIES_BEHIND) {
			st = go_ahead(job, &m, &err);
			break;
		}
		st = gpu_step(&m, rank, s, 0, &err);
	}
	out->number[TOOK] = process_clock() - since;
	if (m.red)
		gpu_model_close(&m);
	out->number[OPEN] = (double)fake_nccl("fake_nccl_live");
	leave(out, st, &err);
}

enum { ALLOCATED, MISALIGNED, WAITED };

/* A real step allocates nothing once all buckets have been through one, gives NCCL nothing
 * that stands off its boundaries, and waits for nothing. */
static void steady(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const char *const *spec = arg;
	gradcomp_error err = {0};
	gpu_model m;
	gradcomp_status st =
		gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, spec[0], spec[1], 5000, &err);
	long before = 0, waits = 0;
	(void)P;
	for (int s = 0; !st && s < 6; s++) {
		st = gpu_step(&m, rank, s, 0, &err);
		before = s == 2 ? fake_cuda_allocations() : before;
		waits = s == 2 ? fake_cuda_waits() : waits;
	}
	/* One a step is the test's own. */
	out->number[WAITED] = (double)(fake_cuda_waits() - waits - 3);
	out->number[ALLOCATED] = (double)(fake_cuda_allocations() - before);
	out->number[MISALIGNED] = (double)fake_nccl("fake_nccl_misaligned");
	if (m.red)
		gpu_model_close(&m);
	leave(out, st, &err);
}

enum { OFF, TAKEN, TAKEN_LATE, LEFT };

/* In the program's memory: the same results as in CUDA's, no cudaMalloc() at all, nothing asked for in
 * later steps, everything given back. */
static void lent(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const char *const *spec = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gpu_model usual, m;
	arena a;
	int early = 0;
	long before;
	(void)P;
	gradcomp_status st = gpu_model_open(&usual, w, GRADCOMP_CUDA, GRADCOMP_F32, spec[0], spec[1], 5000, &err);
	if (st) {
		leave(out, st, &err);
		return;
	}
	arena_open(&a);
	before = fake_cuda_mallocs() + N_TENSORS; /* for gradients, by the test */
	st = gpu_model_open(&m, w, GRADCOMP_CUDA, GRADCOMP_F32, spec[0], spec[1], 5000, &err);
	out->number[TAKEN] = (double)(fake_cuda_mallocs() - before);
	for (int s = 0; !st && s < 5; s++) {
		st = gpu_step(&usual, rank, s, s == 3, &err);
		before = fake_cuda_mallocs();
		if (!st)
			st = gpu_step(&m, rank, s, s == 3, &err);
		out->number[TAKEN] += (double)(fake_cuda_mallocs() - before);
		out->number[OFF] = fmax(out->number[OFF], gpu_distance(&usual, &m));
		early = s < 2 ? a.n : early;
	}
	out->number[TAKEN_LATE] = a.n - early;
	gpu_model_close(&usual);
	if (m.red)
		gpu_model_close(&m);
	out->number[LEFT] = arena_close(&a);
	leave(out, st, &err);
}

enum { GROWING = 12 };

/* Each bucket is larger than those before, and all are on the device before it has a gradient: what the
 * workspaces outgrow is still to be worked on. */
static void outgrown(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_tensor_desc d[GROWING];
	char names[GROWING][16];
	uint64_t n[GROWING];
	void *grad[GROWING], *host[GROWING];
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = arg,
	                              .collective = "nccl",
	                              .bucket_bytes = 64,
	                              .device = GRADCOMP_CUDA,
	                              .device_alloc = arena_alloc,
	                              .device_release = arena_release};
	gradcomp_reducer *red = NULL;
	gradcomp_error err = {0};
	cudaStream_t queue;
	arena a;
	cuda_must(cudaStreamCreateWithFlags(&queue, 0), "a stream");
	arena_open(&a);
	gpu_memory = (gpu_model_memory){0};
	o.queue = queue;
	o.device_ctx = &a;
	for (int t = 0; t < GROWING; t++) {
		n[t] = (uint64_t)(GROWING - t) * 4000;
		snprintf(names[t], sizeof names[t], "t%d", t);
		d[t] = (gradcomp_tensor_desc){.name = names[t], .dims = &n[t], .ndim = 1};
		cuda_must(cudaMalloc(&grad[t], n[t] * sizeof(float)), "memory");
		cuda_must(cudaHostAlloc(&host[t], n[t] * sizeof(float), 0), "memory");
		for (uint64_t i = 0; i < n[t]; i++)
			((float *)host[t])[i] = (float)(rank + t + (int)(i % 7));
	}
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), d, GROWING, &o, &red, &err);
	fake_cuda_hold(queue, 1);
	for (int t = GROWING - 1; !st && t >= 0; t--) {
		cudaMemcpyAsync(grad[t], host[t], n[t] * sizeof(float), cudaMemcpyDefault, queue);
		st = gradcomp_reducer_ready(red, (uint32_t)t, grad[t], &err);
	}
	if (!st)
		st = gradcomp_reducer_wait(red, &err);
	fake_cuda_hold(queue, 0);
	for (int t = 0; t < GROWING; t++)
		cudaMemcpyAsync(host[t], grad[t], n[t] * sizeof(float), cudaMemcpyDefault, queue);
	cuda_must(cudaStreamSynchronize(queue), "the stream");
	for (int t = 0; !st && t < GROWING; t++)
		for (uint64_t i = 0; i < n[t]; i++)
			if (!(fabs(((float *)host[t])[i] - ((P - 1) / 2.0 + t + (int)(i % 7))) < 1e-3))
				out->number[OFF]++;
	out->number[TAKEN] = a.n;
	gradcomp_reducer_free(red);
	for (int t = 0; t < GROWING; t++) {
		cudaFree(grad[t]);
		cudaFreeHost(host[t]);
	}
	cudaStreamDestroy(queue);
	out->number[LEFT] = arena_close(&a);
	leave(out, st, &err);
}

static void try_lent(const char *compressor, const char *collective, const char *const *settings)
{
	const char *spec[] = {compressor, collective};
	const outcome *o = run_processes(3, 60, settings, lent, spec);
	int wrong = 0;
	for (int r = 0; r < 3; r++) {
		wrong |= o[r].failed || o[r].status || o[r].number[OFF] > 0 || o[r].number[TAKEN] > 0 ||
		         o[r].number[TAKEN_LATE] > 0 || o[r].number[LEFT] > 0;
		if (wrong)
			printf("# rank %d: status %d %s, off by %g; CUDA was asked %g times, the program late %g times; %g are left\n",
			       r, o[r].status, o[r].text, o[r].number[OFF], o[r].number[TAKEN], o[r].number[TAKEN_LATE],
			       o[r].number[LEFT]);
	}
	ok(!wrong, "%s over %s in the program's memory: as in CUDA's, which is not asked; all is given back",
	   compressor, collective);
}

/* The n-th block is refused, on rank 1: words, no rank hangs, all is given back. */
static void refused(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const int *how = arg; /* which is refused, the shift */
	gradcomp_error err = {0};
	gpu_model m;
	arena a;
	(void)P;
	arena_open(&a);
	a.refuse = rank == 1 ? how[0] : 0;
	a.shift = rank == 1 ? how[1] : 0;
	if (how[0] < 0 && rank == 1)
		gpu_memory.release = NULL;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32,
	                                    "topk:density=0.1", "nccl", 5000, &err);
	for (int s = 0; !st && s < 3; s++)
		st = gpu_step(&m, rank, s, 0, &err);
	if (m.red)
		gpu_model_close(&m);
	out->number[0] = a.n;
	out->number[LEFT] = arena_close(&a);
	leave(out, st, &err);
}

static void try_refused(const char *const *settings)
{
	int how[2] = {0, 0};
	const outcome *o = run_processes(2, 60, settings, refused, how);
	int count = (int)o[1].number[0], wrong = o[0].status || o[1].status || o[0].failed || o[1].failed;
	for (how[0] = 1; !wrong && how[0] <= count; how[0]++) {
		if (how[0] < count && !tap_in_part((unsigned long)how[0], 6))
			continue;
		o = run_processes(2, 60, settings, refused, how);
		wrong = o[1].status != GRADCOMP_ERR_NOMEM || !o[0].status || o[0].failed || o[1].failed ||
		        o[1].number[LEFT] > 0 || o[0].number[LEFT] > 0 ||
		        !strstr(o[1].text, "device_alloc() gave none");
		if (wrong)
			printf("# block %d: status %d and %d, \"%s\" and \"%s\", %g and %g are left\n", how[0],
			       o[0].status, o[1].status, o[0].text, o[1].text, o[0].number[LEFT], o[1].number[LEFT]);
	}
	ok(!wrong && count > 5, "a block of %d that the program does not give ends the step: \"%s\"", count, o[1].text);
	how[0] = 0;
	how[1] = 8;
	o = run_processes(2, 60, settings, refused, how);
	ok(!o[1].failed && o[1].status == GRADCOMP_ERR_NOMEM && strstr(o[1].text, "16 bytes") && o[1].number[LEFT] <= 0,
	   "nor is one taken that begins anywhere: \"%s\"", o[1].text);
	how[0] = -1;
	how[1] = 0;
	o = run_processes(2, 60, settings, refused, how);
	ok(!o[1].failed && o[1].status == GRADCOMP_ERR_INVALID && strstr(o[1].text, "device_release") && o[0].status,
	   "half an allocator is refused: \"%s\"", o[1].text);
}

typedef struct failing {
	const char *compressor, *collective;
	int P;
	long launch; /* rank 1's in its second step, from 1; 0: none fails */
} failing;

/* A launch that fails ends the rank's step; another, whose device may have all it needs by then, learns
 * of it in one of the next two. */
static void launches(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const failing *f = arg;
	gradcomp_error err = {0};
	gpu_model m;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, f->compressor,
	                                    f->collective, 1 << 20, &err);
	long before = 0;
	(void)P;
	for (int s = 0; !st && s < (f->launch ? 4 : 2); s++) {
		before = fake_cuda_launches();
		if (s == 1 && rank == 1)
			fake_cuda_fail_launch(f->launch);
		st = gpu_step(&m, rank, s, 0, &err);
	}
	out->number[0] = (double)(fake_cuda_launches() - before);
	if (m.red)
		gpu_model_close(&m);
	leave(out, st, &err);
}

/* Each launch of a step fails once; in CI a sixth of them, and the last. */
static void try_launches(const char *compressor, const char *collective, const char *const *settings)
{
	/* The fewest ranks on two nodes are one rank and two. */
	failing f = {.compressor = compressor, .collective = collective, .P = strncmp(collective, "hier", 4) ? 2 : 3};
	const outcome *o = run_processes(f.P, 30, settings, launches, &f);
	long count = (long)o[1].number[0];
	int wrong = o[0].status || o[1].status || o[0].failed || o[1].failed;
	for (f.launch = 1; !wrong && f.launch <= count; f.launch++) {
		if (f.launch < count && !tap_in_part((unsigned long)f.launch, 6))
			continue;
		o = run_processes(f.P, 30, settings, launches, &f);
		wrong = o[1].status != GRADCOMP_ERR_IO || !o[0].status || o[0].failed || o[1].failed ||
		        !strstr(o[1].text, "a launch failed: ") ||
		        !strstr(o[1].text, ": invalid configuration argument");
		if (wrong)
			printf("# launch %ld: status %d and %d, \"%s\" and \"%s\"\n", f.launch, o[0].status,
			       o[1].status, o[0].text, o[1].text);
	}
	ok(!wrong && count > 1, "%s over %s: a launch of %ld that fails ends its step: \"%s\"", compressor, collective,
	   count, o[1].text);
}

/* Operators of a step whose five tensors are one bucket: as many whatever the number of ranks. */
static void count_launches(const char *compressor, long most, const char *const *settings)
{
	failing f = {.compressor = compressor, .collective = "nccl"};
	const outcome *o = run_processes(2, 30, settings, launches, &f);
	const long two = (long)o[1].number[0];
	int failed = o[0].failed | o[1].failed | o[0].status | o[1].status;
	o = run_processes(4, 30, settings, launches, &f);
	ok(!failed && !o[3].failed && !o[3].status && two <= most && (long)o[3].number[0] == two,
	   "%s over nccl: a bucket of five tensors takes %ld launches (%ld of 4 ranks), at most %ld", compressor, two,
	   (long)o[3].number[0], most);
}

static void enqueued(void *ctx, uint32_t first, uint32_t n, gradcomp_status status, const gradcomp_error *err)
{
	(void)first, (void)err;
	__atomic_add_fetch((int *)ctx, status ? 1000 : (int)n, __ATOMIC_SEQ_CST);
}

/* The stream of gradients stands still: two steps are done all the same, and a third is when it
 * goes on. What follows a tensor then finds its average. */
static void ahead(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const char *const *spec = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_tensor_desc d[2] = {{.name = "a", .dims = tensor_dims[3], .ndim = 1},
	                             {.name = "b", .dims = tensor_dims[3], .ndim = 1}};
	int done = 0;
	gradcomp_reducer_options o = {.struct_size = sizeof o,
	                              .compressor = spec[0],
	                              .collective = spec[1],
	                              .bucket_bytes = 5000,
	                              .device = GRADCOMP_CUDA,
	                              .done_run = enqueued,
	                              .ctx = &done};
	gradcomp_reducer *red;
	gradcomp_error err = {0};
	cudaStream_t queue, other;
	void *grad[2], *host[2];
	size_t bytes = tensor_numel(3) * sizeof(float);
	cuda_must(cudaStreamCreateWithFlags(&queue, 0), "a stream");
	cuda_must(cudaStreamCreateWithFlags(&other, 0), "a stream");
	o.queue = queue;
	for (int t = 0; t < 2; t++) {
		cuda_must(cudaMalloc(&grad[t], bytes), "memory");
		cuda_must(cudaHostAlloc(&host[t], bytes, 0), "memory");
	}
	gradcomp_status st = gradcomp_reducer_create(w, d, 2, &o, &red, &err);
	for (int s = 0; !st && s < 5; s++) {
		if (s == 2) {
			cuda_must(cudaStreamSynchronize(queue), "the stream");
			fake_cuda_hold(queue, 1);
		}
		for (int t = 0; t < 2; t++)
			for (uint64_t i = 0; i < tensor_numel(3); i++)
				((float *)host[t])[i] = s == 2 || s == 3 ? (float)(rank + t) : 0;
		for (int t = 0; !st && t < 2; t++) {
			cudaMemcpyAsync(grad[t], host[t], bytes, cudaMemcpyDefault, queue);
			st = gradcomp_reducer_ready(red, (uint32_t)t, grad[t], &err);
		}
		if (!st)
			st = gradcomp_reducer_wait(red, &err);
		out->failed |= done != 2 * (s + 1);
		if (s == 3) {
			out->failed |= cudaStreamQuery(queue) != cudaErrorNotReady;
			st = st ? st : gradcomp_reducer_follow(red, 1, other, &err);
			/* A stream of its own, and then that of gradients, which wait() made follow. */
			fake_cuda_hold(queue, 0);
			cudaMemcpyAsync(host[1], grad[1], bytes, cudaMemcpyDefault, other);
			cudaMemcpyAsync(host[0], grad[0], bytes, cudaMemcpyDefault, queue);
			cuda_must(cudaStreamSynchronize(other), "the stream");
			cuda_must(cudaStreamSynchronize(queue), "the stream");
			for (int t = 0; t < 2; t++)
				out->failed |= fabs(((float *)host[t])[7] - ((P - 1) / 2.0 + t)) > 0.2;
		}
	}
	if (!st) {
		cudaGraph_t graph;
		cuda_must(cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal), "a capture");
		gradcomp_error why = {0};
		gradcomp_status refused = gradcomp_reducer_ready(red, 0, grad[0], &why);
		out->failed |= refused != GRADCOMP_ERR_UNSUPPORTED || !strstr(why.text, "CUDA graph");
		cuda_must(cudaStreamEndCapture(queue, &graph), "a capture's end");
		gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
		cuda_must(cudaStreamSynchronize(queue), "the stream");
		gradcomp_reducer_get_stats(red, &stats);
		/* The exchange was held up with the gradients, which is no time of its own. */
		out->failed |= stats.steps != 5 || !(stats.encode_s > 0) || !(stats.exchange_s > 0) ||
		               !(stats.wire_bytes > 0 || P == 1);
	}
	gradcomp_reducer_free(red);
	for (int t = 0; t < 2; t++) {
		cudaFree(grad[t]);
		cudaFreeHost(host[t]);
	}
	leave(out, st, &err);
}

/* Gradients of the host over `nccl`, as ring carries them: no device is asked for. */
static void on_host(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_tensor_desc d = {.name = "w", .dims = tensor_dims[3], .ndim = 1};
	gradcomp_reducer_options o = {.struct_size = sizeof o, .compressor = "topk:density=0.1", .collective = "nccl"};
	gradcomp_reducer *red;
	gradcomp_error err = {0};
	float *g = calloc(tensor_numel(3), sizeof *g);
	(void)arg;
	g[5] = (float)(rank + 1);
	gradcomp_status st = gradcomp_reducer_create(w, &d, 1, &o, &red, &err);
	if (!st)
		st = gradcomp_reducer_ready(red, 0, g, &err);
	if (!st)
		st = gradcomp_reducer_wait(red, &err);
	out->failed = fabs(g[5] - (P + 1) / 2.0) > 1e-6;
	gradcomp_reducer_free(red);
	free(g);
	leave(out, st, &err);
}

/* Says how the NCCL of rank 1 differs from that of the others. */
typedef struct odd_nccl {
	const char *name, *value; /* a variable of the environment */
	const char *compressor, *collective;
} odd_nccl;

static void with_odd_nccl(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const odd_nccl *odd = arg;
	gradcomp_error err = {0};
	gpu_model m;
	(void)P;
	if (rank == 1)
		setenv(odd->name, odd->value, 1);
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, odd->compressor,
	                                    odd->collective, 5000, &err);
	if (!st)
		gpu_model_close(&m);
	leave(out, st, &err);
}

/* Returns a file with what three ranks write to standard error in steady(). */
static int said_by(const char *const *settings, const char *const *spec)
{
	const int was = dup(2), to = memfd_create("log", MFD_CLOEXEC);
	dup2(to, 2);
	run_processes(3, 30, settings, steady, (void *)(uintptr_t)spec);
	dup2(was, 2);
	close(was);
	return to;
}

static void try(const fault *f, const char *const *settings)
{
	int wrong = 0, waited = 0;
	double took = 0;
	if (f->name)
		setenv(f->name, f->value, 1);
	const outcome *o = run_processes(3, 30, settings, body, (void *)(uintptr_t)f);
	if (f->name)
		unsetenv(f->name);
	for (int r = 0; r < 3; r++) {
		if (r == 1 && f->does <= DIES_DIVIDING) {
			wrong |= o[r].failed != -SIGKILL;
			continue;
		}
		if (r == 1 && f->does != NOTHING)
			continue;
		wrong |= o[r].status != f->status || (!f->status && o[r].failed) || !strstr(o[r].text, f->says);
		waited |= !f->waits || strstr(o[r].text, f->waits);
		wrong |= o[r].number[OPEN] > 0;
		took = fmax(took, o[r].number[TOOK]);
	}
	wrong |= !waited;
	took -= o[1].number[SLEPT];
	ok(!wrong && in_time(took, f->within), "%s: \"%s\" after %.1f s", f->what, o[2].text, took);
	if (!wrong && f->does == DIES && !fake_cuda_allocations)
		printf("figure: until the others know, when %s = %.0f ms\n", f->what, 1e3 * took);
	for (int r = 0; wrong && r < 3; r++)
		printf("# rank %d: failed %d, status %d, %.0f communicators left, \"%s\"\n", r, o[r].failed,
		       o[r].status, o[r].number[OPEN], o[r].text);
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	static const fault faults[] = {
		{.what = "a rank is killed in a step over nccl",
	         .compressor = "none",
	         .collective = "nccl",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to reduce",
	         .within = 6},
		{.what = "and NCCL does not notice",
	         .compressor = "none",
	         .collective = "nccl",
	         .name = "FAKE_NCCL_SILENT",
	         .value = "1",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to reduce",
	         .within = 6},
		{.what = "a rank is killed, and others have begun the step after",
	         .compressor = "none",
	         .collective = "nccl",
	         .name = "FAKE_NCCL_SILENT",
	         .value = "1",
	         .does = DIES_BEHIND,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .within = 6},
		{.what = "a rank is killed while payloads are gathered",
	         .compressor = "topk:density=0.1",
	         .collective = "nccl",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to gather",
	         .within = 6},
		{.what = "a rank is killed while codes are exchanged",
	         .compressor = "block",
	         .collective = "nccl",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to",
	         .within = 6},
		{.what = "a rank is killed in a step through pinned memory",
	         .compressor = "topk:density=0.1",
	         .collective = "ring",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting to",
	         .within = 6},
		{.what = "a rank is killed before it has a reducer",
	         .compressor = "none",
	         .collective = "nccl",
	         .does = DIES_EARLY,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .within = 6},
		{.what = "a rank does not come",
	         .compressor = "none",
	         .collective = "nccl:timeout=1",
	         .does = STAYS_AWAY,
	         .status = GRADCOMP_ERR_TIMEOUT,
	         .says = "timeout=",
	         .waits = "was waiting for NCCL to reduce",
	         .within = 4},
		{.what = "a rank gives up its reducer",
	         .compressor = "none",
	         .collective = "nccl",
	         .does = GIVES_UP,
	         .status = GRADCOMP_ERR_STATE,
	         .says = "rank 1 gave up its reducer",
	         .within = 4},
		{.what = "payloads are damaged on their way",
	         .compressor = "topk:density=0.1",
	         .collective = "nccl",
	         .name = "FAKE_NCCL_DAMAGE",
	         .value = "1",
	         .does = NOTHING,
	         .status = GRADCOMP_ERR_MISMATCH,
	         .says = "damaged",
	         .within = 10},
		{.what = "merged payloads are damaged on their way",
	         .compressor = "gtopk:density=0.1",
	         .collective = "nccl",
	         .name = "FAKE_NCCL_DAMAGE",
	         .value = "1",
	         .does = NOTHING,
	         .status = GRADCOMP_ERR_MISMATCH,
	         .says = "damaged",
	         .within = 10},
		{.what = "damaged places of coefficients",
	         .compressor = "demo",
	         .collective = "nccl",
	         .name = "FAKE_NCCL_DAMAGE",
	         .value = "1",
	         .does = NOTHING,
	         .status = GRADCOMP_ERR_MISMATCH,
	         .says = "damaged",
	         .within = 10},
		{.what = "a rank is killed while payloads are merged",
	         .compressor = "gtopk:density=0.1",
	         .collective = "nccl",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to",
	         .within = 6},
		{.what = "a rank is killed in a step of two levels",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to reduce",
	         .within = 6},
		{.what = "and NCCL does not notice",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2",
	         .name = "FAKE_NCCL_SILENT",
	         .value = "1",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to reduce",
	         .within = 6},
		{.what = "a rank is killed in sums of two levels",
	         .compressor = "none",
	         .collective = "hier:ranks_per_node=2",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to",
	         .within = 6},
		{.what = "a rank is killed when communicators are first made",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2",
	         .name = "FAKE_NCCL_SILENT",
	         .value = "1",
	         .does = DIES_DIVIDING,
	         .split = "-1",
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to bring all ranks together",
	         .within = 6},
		{.what = "a rank is killed while nodes are divided",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2",
	         .name = "FAKE_NCCL_SILENT",
	         .value = "1",
	         .does = DIES_DIVIDING,
	         .split = "0",
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to divide the ranks",
	         .within = 6},
		{.what = "a rank is killed while ranks are divided",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2",
	         .name = "FAKE_NCCL_SILENT",
	         .value = "1",
	         .does = DIES_DIVIDING,
	         .split = "1",
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting for NCCL to divide the ranks",
	         .within = 6},
		{.what = "a rank does not come to two levels",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2,timeout=1",
	         .does = STAYS_AWAY,
	         .status = GRADCOMP_ERR_TIMEOUT,
	         .says = "timeout=",
	         .waits = "was waiting for NCCL to",
	         .within = 4},
		{.what = "payloads between nodes are damaged",
	         .compressor = "topk:density=0.1",
	         .collective = "hier:ranks_per_node=2",
	         .name = "FAKE_NCCL_DAMAGE",
	         .value = "1",
	         .does = NOTHING,
	         .status = GRADCOMP_ERR_MISMATCH,
	         .says = "damaged",
	         .within = 10},
		{.what = "a rank is killed while payloads are merged through pinned memory",
	         .compressor = "gtopk:density=0.1",
	         .collective = "tree",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting to",
	         .within = 6},
		{.what = "a rank is killed while codes are made in pinned memory",
	         .compressor = "block",
	         .collective = "ring",
	         .does = DIES,
	         .status = GRADCOMP_ERR_PEER,
	         .says = "rank 1",
	         .waits = "was waiting to",
	         .within = 6},
		{.what = "the device has too little memory",
	         .compressor = "topk:density=0.1",
	         .collective = "nccl",
	         .name = "FAKE_CUDA_BYTES",
	         .value = "150000",
	         .does = NOTHING,
	         .status = GRADCOMP_ERR_NOMEM,
	         .says = "CUDA memory",
	         .within = 10},
	};
	test_seed_value = 3;
	for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
		if (fake_cuda_allocations || !faults[i].name)
			try(&faults[i], settings);
	if (!fake_cuda_allocations)
		return done_testing();

	static const char *const pairs[][2] = {{"topk:density=0.1", "nccl"},
	                                       {"topk:density=0.1", "ring"},
	                                       {"powersgd", "nccl"},
	                                       {"block", "nccl"},
	                                       {"none", "nccl"},
	                                       {"signsgd", "ring"},
	                                       {"qsgd:levels=7", "nccl"},
	                                       {"onebit", "nccl"},
	                                       {"acpsgd", "nccl"},
	                                       {"dgc:density=0.1", "nccl"},
	                                       {"lqsgd", "nccl"},
	                                       {"gtopk:density=0.1", "tree"},
	                                       {"fp8", "nccl"},
	                                       {"natural", "nccl"},
	                                       {"cast", "nccl"},
	                                       {"signsgd", "nccl"},
	                                       {"gtopk:density=0.1", "nccl"},
	                                       {"topk:density=0.1", "hier:ranks_per_node=2"},
	                                       {"randomk:density=0.1", "hier:ranks_per_node=2"},
	                                       {"lags:density=0.1", "hier:ranks_per_node=2"},
	                                       {"none", "hier:ranks_per_node=2"},
	                                       {"block", "hier:ranks_per_node=2"},
	                                       {"blocktopk:density=0.1", "nccl"},
	                                       {"lqsgd:levels=log", "nccl"},
	                                       {"demo", "nccl"},
	                                       {"demo:form=published", "nccl"},
	                                       {"dion", "nccl"},
	                                       {"dion:orthogonal=qr", "nccl"},
	                                       {"lags:adaptive=yes", "nccl"},
	                                       {"block", "ring"},
	                                       {"onebit", "direct"}};
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
		/* One of three ranks, two a node, holds two shards. */
		int two_levels = !strncmp(pairs[i][1], "hier", 4), P = two_levels ? 3 : 2;
		const outcome *o = run_processes(P, 30, settings, steady, (void *)(uintptr_t)pairs[i]);
		ok(!o[0].failed && !o[0].status && o[0].number[ALLOCATED] == 0 && o[P - 1].number[ALLOCATED] == 0,
		   "%s over %s: no memory is asked for after the third step %s", pairs[i][0], pairs[i][1], o[0].text);
		if (two_levels || !strcmp(pairs[i][1], "nccl"))
			ok(o[0].number[WAITED] == 0 && o[P - 1].number[WAITED] == 0,
			   "%s over %s: no step waits for the device (%g, %g)", pairs[i][0], pairs[i][1],
			   o[0].number[WAITED], o[P - 1].number[WAITED]);
		if (two_levels || !strcmp(pairs[i][1], "nccl"))
			ok(o[0].number[MISALIGNED] == 0 && o[P - 1].number[MISALIGNED] == 0,
			   "%s over %s: all buffers stand on boundaries of 16 bytes (%g and %g do not)", pairs[i][0],
			   pairs[i][1], o[0].number[MISALIGNED], o[P - 1].number[MISALIGNED]);
	}

	count_launches("none", 5, settings);
	count_launches("cast:sum=wire", 6, settings);
	count_launches("topk:density=0.1", 17, settings);
	count_launches("topk:density=0.1,layerwise=yes", 24, settings);
	count_launches("powersgd", 39, settings);
	count_launches("blocktopk:density=0.1", 26, settings);
	count_launches("demo", 23, settings);
	count_launches("dion", 55, settings);
	/* Ranks that merge nothing; a merge takes some more. */
	count_launches("gtopk:density=0.1", 24, settings);
	try_launches("topk:density=0.1", "nccl", settings);
	try_launches("powersgd", "nccl", settings);
	try_launches("block", "nccl", settings);
	try_launches("gtopk:density=0.1", "nccl", settings);
	try_launches("topk:density=0.1", "ring", settings);
	try_launches("topk:density=0.1", "hier:ranks_per_node=2", settings);
	try_launches("blocktopk:density=0.1", "nccl", settings);
	try_launches("demo", "nccl", settings);
	try_launches("dion", "nccl", settings);
	try_launches("gtopk:density=0.1", "tree", settings);
	try_launches("block", "ring", settings);
	try_lent("topk:density=0.1", "nccl", settings);
	try_lent("powersgd:rank=2", "nccl", settings);
	try_lent("dgc:density=0.1", "ring", settings);
	try_lent("signsgd", "ring", settings);
	try_lent("gtopk:density=0.1", "tree", settings);
	try_lent("block", "ring", settings);
	try_refused(settings);
	static const char *const outgrow[] = {"topk:density=1", "cast:type=bf16"};
	for (size_t i = 0; i < sizeof outgrow / sizeof outgrow[0]; i++) {
		const outcome *o = run_processes(2, 30, settings, outgrown, (void *)(uintptr_t)outgrow[i]);
		ok(!o[0].failed && !o[1].failed && !o[0].status && !o[1].status && o[0].number[OFF] <= 0 &&
		           o[0].number[LEFT] <= 0,
		   "%s over nccl: what is outgrown while the device works on it goes back later (%g wrong numbers, %g blocks) %s",
		   outgrow[i], o[0].number[OFF], o[0].number[TAKEN], o[0].text);
	}
	static const char *const enqueue[][2] = {{"none", "nccl"},
	                                         {"block", "nccl"},
	                                         {"powersgd:rank=2", "nccl"},
	                                         {"onebit", "nccl"},
	                                         {"topk:density=1", "hier:ranks_per_node=2"}};
	for (size_t i = 0; i < sizeof enqueue / sizeof enqueue[0]; i++) {
		const outcome *o = run_processes(3, 30, settings, ahead, (void *)(uintptr_t)enqueue[i]);
		ok(!o[0].failed && !o[1].failed && !o[2].failed && !o[0].status && !o[1].status,
		   "%s over %s: two steps are done before the device has a gradient %s", enqueue[i][0], enqueue[i][1],
		   o[0].text);
	}

	/* Nobody names a collective: then no step waits, or every step does. */
	static const char *const usual[] = {"topk:density=0.1", NULL};
	const char *const without[] = {"transport.timeout=5", "gradcomp.log=error", "gradcomp.device_collective=absent",
	                               NULL};
	const outcome *o = run_processes(2, 30, settings, steady, (void *)(uintptr_t)usual);
	ok(!o[0].failed && !o[0].status && o[0].number[WAITED] == 0 && o[1].number[WAITED] == 0,
	   "without a collective's name payloads go over nccl %s", o[0].text);
	o = run_processes(2, 30, without, steady, (void *)(uintptr_t)usual);
	ok(!o[0].failed && !o[0].status && o[0].number[WAITED] > 0 && o[1].number[WAITED] > 0,
	   "... and through host memory where the collective for devices is not there %s", o[0].text);
	/* Said once, by rank 0, with the reason. */
	static const char *const warns[] = {"transport.timeout=5", "gradcomp.log=warn",
	                                    "gradcomp.device_collective=absent", NULL};
	char said[2048] = "";
	int to = said_by(warns, usual);
	ok(pread(to, said, sizeof said - 1, 0) > 0 &&
	           strstr(said, "are sent by 'ring', through host memory, since 'absent' cannot be used (") &&
	           !strstr(strstr(said, "cannot be used") + 1, "cannot be used"),
	   "... which rank 0 says: %s", strtok(said, "\n") ? said : "nothing");
	close(to);

	/* With two ranks a node; sums go over nccl there, too. */
	static const struct {
		const char *spec, *says;
	} nodes[] = {{"topk:density=0.1", "'topk' goes over collective 'hier'"},
	             {"block:bits=4", "'block' goes over collective 'hier'"},
	             {"none", NULL},
	             {"gtopk:density=0.1", NULL},
	             {"powersgd:rank=2", NULL}};
	static const char *const informs[] = {"transport.timeout=5", "gradcomp.log=info", NULL};
	static const char *const given[] = {"transport.timeout=5", "gradcomp.log=info",
	                                    "gradcomp.device_collective=nccl", NULL};
	for (size_t k = 0; k <= sizeof nodes / sizeof nodes[0]; k++) {
		const int named = k == sizeof nodes / sizeof nodes[0];
		const char *const spec[] = {nodes[named ? 0 : k].spec, NULL};
		processes_per_node = 2;
		to = said_by(named ? given : informs, spec);
		processes_per_node = 0;
		memset(said, 0, sizeof said);
		ssize_t bytes = pread(to, said, sizeof said - 1, 0);
		close(to);
		o = processes_store->result;
		if (o[0].failed == ENOSYS) {
			skip("there are no user namespaces", "%s on 2 nodes", spec[0]);
			continue;
		}
		const char *says = named ? NULL : nodes[k].says;
		ok(bytes > 0 && !o[0].status && !o[0].failed && o[0].number[WAITED] == 0 &&
		           (says ? strstr(said, says) != NULL : !strstr(said, "'hier'")),
		   "%s on 2 nodes goes over %s%s %s%s", spec[0], says ? "hier" : "nccl", named ? ", which is set" : "",
		   o[0].text, says && strstr(said, says) ? "" : said);
	}

	static const char *const levels[] = {"topk:density=0.1", "hier:ranks_per_node=2"};
	static const char *const warn[] = {"transport.timeout=5", "gradcomp.log=warn", NULL};
	memset(said, 0, sizeof said);
	setenv("FAKE_NCCL_ABSENT", "1", 1);
	to = said_by(warn, levels);
	unsetenv("FAKE_NCCL_ABSENT");
	ssize_t had = pread(to, said, sizeof said - 1, 0);
	ok(had > 0 && strstr(said, "go through host memory over 'hier', whose way on GPUs cannot be used (") &&
	           strstr(said, "install NCCL") && !strstr(strstr(said, "over 'hier'") + 1, "over 'hier'"),
	   "two levels are in host memory where there is no NCCL, which rank 0 says: %.*s", (int)strcspn(said, "\n"),
	   said);
	close(to);
	odd_nccl odd = {"FAKE_NCCL_ABSENT", "1", "topk:density=0.1", "hier:ranks_per_node=2"};
	o = run_processes(3, 30, settings, with_odd_nccl, &odd);
	ok(o[0].status == GRADCOMP_ERR_MISMATCH && o[1].status && o[2].status && strstr(o[0].text, "rank 1") &&
	           strstr(o[0].text, "through host memory"),
	   "ranks with NCCL and without it have no reducer: %s", o[0].text);

	odd = (odd_nccl){"FAKE_NCCL_VERSION", "21803", "none", "nccl"};
	o = run_processes(3, 30, settings, with_odd_nccl, &odd);
	ok(o[0].status == GRADCOMP_ERR_MISMATCH && o[1].status == o[0].status && o[2].status == o[0].status &&
	           strstr(o[0].text, "21803") && strstr(o[1].text, "21803"),
	   "ranks with NCCL of two versions have no reducer: %s", o[1].text);

	setenv("FAKE_CUDA_DEVICES", "0", 1);
	o = run_processes(3, 30, settings, on_host, NULL);
	ok(!o[0].status && !o[1].status && !o[0].failed && !o[1].failed && !o[2].failed,
	   "gradients of the host go over nccl without a device %s", o[0].text);
	return done_testing();
}
