/* Plain collectives of groups on device memory, over nccl and through host memory: against the same in host
 * memory, to the bit (sums of whole numbers); odd and no sizes, unequal blocks, pieces, several types, streams that are
 * late; what is refused; ranks that die, launches that fail, ranks without a device or with another
 * collective. */
#include "job/parallel_internal.h"
#include "tests/fake/gpu_model.h"

enum { DIES_AFTER_MS = 200 };

/* The fake's; on a real device there is none, and what needs a fake is passed over. */
__attribute__((weak)) extern long fake_cuda_allocations(void);
__attribute__((weak)) extern long fake_cuda_launches(void);
__attribute__((weak)) extern void fake_cuda_fail_launch(long k);

static const uint64_t sizes[] = {0, 1, 7, 4097};
enum { SIZES = sizeof sizes / sizeof *sizes, LARGE = 2500001 };
static const gradcomp_dtype types[] = {GRADCOMP_F32, GRADCOMP_BF16, GRADCOMP_F64, GRADCOMP_I32, GRADCOMP_U8};
enum { TYPES = sizeof types / sizeof *types };

static cudaStream_t queue;
static gradcomp_memory_options where = {.struct_size = sizeof where, .device = GRADCOMP_CUDA};

/* The same twice: in host memory, and on the device by way of pinned memory. */
typedef struct twin {
	size_t bytes;
	char *host, *pinned;
	void *device;
} twin;

static twin twin_new(uint64_t n, gradcomp_dtype t, int rank, int salt)
{
	twin w = {.bytes = n * gradcomp_dtype_bytes(t)};
	void *p;
	w.host = calloc(1, w.bytes + 1);
	cuda_must(cudaHostAlloc(&p, w.bytes + 1, 0), "pinned memory");
	w.pinned = p;
	cuda_must(cudaMalloc(&w.device, w.bytes + 1), "device memory");
	for (uint64_t i = 0; i < n; i++) {
		int v = (int)(mixed(test_seed_value + (uint64_t)rank * 7919 + (uint64_t)salt * 104729 + i) % 16);
		float f = (float)v;
		double d = v;
		uint32_t word;
		memcpy(&word, &f, 4);
		char *at = w.host + i * gradcomp_dtype_bytes(t);
		if (t == GRADCOMP_F32)
			memcpy(at, &f, 4);
		else if (t == GRADCOMP_BF16)
			memcpy(at, (char *)&word + 2, 2);
		else if (t == GRADCOMP_F64)
			memcpy(at, &d, 8);
		else if (t == GRADCOMP_I32)
			memcpy(at, &v, 4);
		else
			*at = (char)v;
	}
	memcpy(w.pinned, w.host, w.bytes);
	cuda_must(cudaMemcpyAsync(w.device, w.pinned, w.bytes, cudaMemcpyDefault, queue), "copy");
	return w;
}

/* Returns 1 when `bytes` from `at` on are the same on both sides: by the stream alone. */
static int twin_same(twin *w, size_t at, size_t bytes)
{
	/* All work that a call leaves has been done when it returns. */
	int over = cudaStreamQuery(queue) == cudaSuccess;
	cuda_must(cudaMemcpyAsync(w->pinned, w->device, w->bytes, cudaMemcpyDefault, queue), "copy");
	cuda_must(cudaStreamSynchronize(queue), "the stream");
	return over && !memcmp(w->host + at, w->pinned + at, bytes);
}

static void twin_free(twin *w)
{
	free(w->host);
	cuda_must(cudaFreeHost(w->pinned), "cudaFreeHost");
	cuda_must(cudaFree(w->device), "cudaFree");
}

static int told(int rank, gradcomp_status st, const gradcomp_error *err)
{
	if (st)
		printf("# rank %d: %s\n", rank, err->text);
	return st != 0;
}

static int expect(int right, int rank, const char *what, uint64_t n, gradcomp_dtype t)
{
	if (!right)
		printf("# rank %d: %s of %llu of type %d is not as in host memory\n", rank, what, (unsigned long long)n,
		       (int)t);
	return !right;
}

static int whole(gradcomp_group *g, int rank, int P, uint64_t n, gradcomp_dtype t, gradcomp_error *err)
{
	int failed = 0, root = (int)(n % (uint64_t)P);
	for (gradcomp_op op = GRADCOMP_SUM; !failed && op <= GRADCOMP_MIN; op++) {
		twin x = twin_new(n, t, rank, 1);
		failed |= told(rank, gradcomp_allreduce(g, x.host, n, t, op, err), err);
		failed |= told(rank, gradcomp_allreduce_on(g, &where, x.device, n, t, op, err), err);
		failed |= expect(twin_same(&x, 0, x.bytes), rank, "an all-reduce", n, t);
		twin_free(&x);
	}
	twin x = twin_new(n, t, rank, 2);
	failed |= told(rank, gradcomp_broadcast(g, x.host, n, t, root, err), err);
	failed |= told(rank, gradcomp_broadcast_on(g, &where, x.device, n, t, root, err), err);
	failed |= expect(twin_same(&x, 0, x.bytes), rank, "a broadcast", n, t);
	twin_free(&x);
	return failed;
}

/* With a place of its own for this rank's block, and in place. */
static int in_blocks(gradcomp_group *g, int rank, int P, uint64_t n, gradcomp_dtype t, int apart, gradcomp_error *err)
{
	uint64_t counts[MAX_RANKS], total = 0, begin = 0;
	size_t size = gradcomp_dtype_bytes(t);
	int failed;
	for (int r = 0; r < P; r++) {
		counts[r] = apart && r % 3 == 1 ? 0 : n + (uint64_t)(apart * r);
		begin += r < rank ? counts[r] : 0;
		total += counts[r];
	}
	twin all = twin_new(total, t, rank, 3), own = twin_new(counts[rank], t, rank, 4);
	char *mine = (char *)all.device + begin * size;
	failed = told(rank, gradcomp_allgather(g, apart ? own.host : all.host + begin * size, all.host, counts, t, err),
	              err);
	failed |= told(rank, gradcomp_allgather_on(g, &where, apart ? own.device : mine, all.device, counts, t, err),
	               err);
	failed |= expect(twin_same(&all, 0, all.bytes), rank, "an all-gather", n, t);
	twin_free(&all);
	all = twin_new(total, t, rank, 5);
	mine = (char *)all.device + begin * size;
	failed |= told(rank,
	               gradcomp_reduce_scatter(g, all.host, apart ? own.host : all.host + begin * size, counts, t,
	                                       GRADCOMP_SUM, err),
	               err);
	failed |= told(rank,
	               gradcomp_reduce_scatter_on(g, &where, all.device, apart ? own.device : mine, counts, t,
	                                          GRADCOMP_SUM, err),
	               err);
	failed |= expect(apart ? twin_same(&own, 0, own.bytes) : twin_same(&all, begin * size, counts[rank] * size),
	                 rank, "a reduce-scatter", n, t);
	twin_free(&all);
	twin_free(&own);
	return failed;
}

/* Wrong on all ranks alike: said, and the next call works. */
static int refusals(gradcomp_group *g, int rank, int P)
{
	gradcomp_memory_options odd = where;
	cudaGraph_t graph;
	gradcomp_error err = {0};
	uint64_t counts[MAX_RANKS] = {0}, huge[MAX_RANKS] = {INT64_MAX, INT64_MAX};
	twin x = twin_new(4, GRADCOMP_F32, rank, 6);
	int bad = 0;
	odd.device = (gradcomp_device)7;
	bad |= gradcomp_allreduce_on(g, &odd, x.device, 4, GRADCOMP_F32, GRADCOMP_SUM, &err) != GRADCOMP_ERR_INVALID ||
	       !strstr(err.text, "device 7");
	odd = where;
	odd.struct_size = 4;
	bad |= gradcomp_broadcast_on(g, &odd, x.device, 4, GRADCOMP_F32, 0, &err) != GRADCOMP_ERR_INVALID;
	bad |= gradcomp_broadcast_on(g, &where, x.device, 4, GRADCOMP_F32, P, &err) != GRADCOMP_ERR_INVALID;
	bad |= gradcomp_allreduce_on(g, &where, NULL, 4, GRADCOMP_F32, GRADCOMP_SUM, &err) != GRADCOMP_ERR_INVALID;
	bad |= gradcomp_allreduce_on(g, &where, x.device, 4, GRADCOMP_F32, (gradcomp_op)9, &err) !=
	       GRADCOMP_ERR_INVALID;
	bad |= gradcomp_allreduce_on(g, &where, x.device, UINT64_MAX, GRADCOMP_F32, GRADCOMP_SUM, &err) !=
	       GRADCOMP_ERR_RANGE;
	bad |= gradcomp_allreduce_on(g, &where, x.device, 4, GRADCOMP_F32, GRADCOMP_BOR, &err) !=
	       GRADCOMP_ERR_UNSUPPORTED;
	bad |= gradcomp_allgather_on(g, &where, x.device, x.device, NULL, GRADCOMP_F32, &err) != GRADCOMP_ERR_INVALID;
	bad |= gradcomp_allgather_on(g, &where, x.device, x.device, huge, GRADCOMP_F32, &err) != GRADCOMP_ERR_RANGE;
	counts[0] = counts[rank] = 1;
	bad |= gradcomp_reduce_scatter_on(g, &where, x.device, NULL, counts, GRADCOMP_F32, GRADCOMP_SUM, &err) !=
	       GRADCOMP_ERR_INVALID;
	bad |= gradcomp_allreduce_on(NULL, &where, x.device, 4, GRADCOMP_F32, GRADCOMP_SUM, NULL) !=
	       GRADCOMP_ERR_INVALID;
	bad |= cudaStreamBeginCapture(queue, cudaStreamCaptureModeGlobal) != cudaSuccess;
	bad |= gradcomp_allreduce_on(g, &where, x.device, 4, GRADCOMP_F32, GRADCOMP_SUM, &err) !=
	               GRADCOMP_ERR_UNSUPPORTED ||
	       !strstr(err.text, "CUDA graph");
	bad |= cudaStreamEndCapture(queue, &graph) != cudaSuccess;
	/* Host memory, by the same functions. */
	bad |= gradcomp_allreduce_on(g, NULL, x.host, 4, GRADCOMP_F32, GRADCOMP_SUM, &err) ||
	       gradcomp_allreduce_on(g, &where, x.device, 4, GRADCOMP_F32, GRADCOMP_SUM, &err);
	bad |= !twin_same(&x, 0, x.bytes);
	twin_free(&x);
	if (bad)
		printf("# rank %d: what is wrong is not refused, or what is right is (%s)\n", rank, err.text);
	return bad;
}

enum { PIECES = 7 };

typedef struct shared_work {
	void *out[PIECES];
	char *made; /* pinned: what a piece makes comes from here */
	int call, done;
} shared_work;

static size_t piece_bytes(int i)
{
	return i == 2 ? 0 : 1000 + 4001 * (size_t)i;
}

/* Puts the piece's work on the stream. */
static void do_piece(void *ctx, uint32_t i)
{
	shared_work *s = ctx;
	s->done++;
	if (piece_bytes((int)i))
		cuda_must(cudaMemcpyAsync(s->out[i], s->made + 32 * s->call + i, piece_bytes((int)i), cudaMemcpyDefault,
		                          where.queue),
		          "copy");
}

/* Pieces one after another in memory, or apart; timed, then shared, then everybody all of them. */
static int parallel(gradcomp_group *w, int rank, int apart)
{
	enum { ROOM = 40000 };
	shared_work s = {.call = 0};
	gradcomp_parallel *p;
	gradcomp_error err = {0};
	uint64_t bytes[PIECES];
	void *pinned, *memory;
	int failed, P = gradcomp_group_nranks(w);
	cuda_must(cudaHostAlloc(&pinned, 2 * ROOM, 0), "memory");
	cuda_must(cudaMalloc(&memory, PIECES * ROOM), "memory");
	s.made = pinned;
	for (int i = 0; i < ROOM; i++)
		s.made[i] = (char)mixed((uint64_t)i);
	size_t at = 0;
	for (int i = 0; i < PIECES; at += apart ? ROOM : piece_bytes(i++), i += apart) {
		bytes[i] = piece_bytes(i);
		s.out[i] = (char *)memory + at;
	}
	failed = told(rank, gradcomp_parallel_create_on(w, &where, bytes, PIECES, &p, &err), &err);
	for (s.call = 0; !failed && s.call < PARALLEL_FIRST + 2; s.call++) {
		if (s.call >= PARALLEL_FIRST)
			p->shared = s.call == PARALLEL_FIRST;
		s.done = 0;
		cuda_must(cudaMemsetAsync(memory, 0x11, PIECES * ROOM, where.queue), "memset");
		failed = told(rank, gradcomp_parallel_apply(p, s.out, do_piece, &s, &err), &err);
		failed |= s.call == PARALLEL_FIRST && P > 1 && s.done >= PIECES;
		for (int i = 0; i < PIECES; i++) {
			cuda_must(cudaMemcpyAsync(s.made + ROOM, s.out[i], bytes[i], cudaMemcpyDefault, where.queue),
			          "copy");
			cuda_must(cudaStreamSynchronize(queue), "the stream");
			failed |= expect(!memcmp(s.made + ROOM, s.made + 32 * s.call + i, bytes[i]), rank, "a piece",
			                 (uint64_t)i, GRADCOMP_U8);
		}
	}
	failed |= !failed && P > 1 && !strstr(gradcomp_parallel_reason(p), "ms to gather");
	if (!failed)
		gradcomp_parallel_free(p);
	cuda_must(cudaFree(memory), "cudaFree");
	cuda_must(cudaFreeHost(pinned), "cudaFreeHost");
	return failed;
}

static void stream_open(void)
{
	cuda_must(cudaStreamCreateWithFlags(&queue, cudaStreamNonBlocking), "a stream");
	where.queue = queue;
}

enum { FROM_NCCL };

static void alike(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job), *part = NULL;
	gradcomp_error err = {0};
	stream_open();
	out->failed = told(rank, gradcomp_group_split(w, rank % 2, -rank, &part, &err), &err);
	/* Each type with each size on some number of ranks. */
	for (size_t k = 0; !out->failed && k < SIZES * TYPES; k++) {
		uint64_t n = sizes[k % SIZES];
		gradcomp_dtype t = types[(k / SIZES + k + (size_t)P) % TYPES];
		if (k % 3 == (size_t)P % 3)
			out->failed |=
				whole(w, rank, P, n, t, &err) || in_blocks(w, rank, P, n, t, (int)k / 3 % 2, &err);
	}
	/* Several pieces; the stream of all streams. */
	if (!out->failed && P == *(const int *)arg) {
		where.queue = NULL;
		cudaStreamDestroy(queue);
		queue = NULL;
		out->failed |= whole(w, rank, P, LARGE, GRADCOMP_F32, &err) ||
		               in_blocks(w, rank, P, LARGE / 2, GRADCOMP_BF16, 1, &err);
		stream_open();
	}
	if (!out->failed)
		out->failed |=
			whole(part, gradcomp_group_rank(part), gradcomp_group_nranks(part), 4097, GRADCOMP_F32, &err) ||
			refusals(w, rank, P) || parallel(w, rank, 0) || parallel(part, rank, 1);
	gradcomp_group_free(part);
	out->number[FROM_NCCL] = (double)fake_nccl("fake_nccl_met");
	cudaStreamDestroy(queue);
}

enum { TOOK };

typedef struct fault {
	long launch; /* number of rank 1's call, from 1; 0: rank 1 dies in it */
	int op;
} fault;

static void leave(outcome *out, gradcomp_status st, const gradcomp_error *err)
{
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err->text : "");
}

/* Calls of which rank 1's third goes wrong. */
static void fails(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const fault *f = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_status st = GRADCOMP_OK;
	double since = 0;
	long before = 0;
	(void)P;
	stream_open();
	twin x = twin_new(LARGE / 10, GRADCOMP_F32, rank, 7);
	for (int s = 0; !st && s < (f->launch < 0 ? 3 : 4); s++) {
		since = s == 3 ? since : process_clock();
		if (s == 2 && rank == 1 && !f->launch) {
			usleep(1000 * DIES_AFTER_MS);
			raise(SIGKILL);
		}
		before = fake_cuda_launches ? fake_cuda_launches() : 0;
		if (s == 2 && rank == 1 && f->launch > 0)
			fake_cuda_fail_launch(f->launch);
		st = gradcomp_allreduce_on(w, &where, x.device, LARGE / 10, GRADCOMP_F32, (gradcomp_op)f->op, &err);
		out->number[1] = (double)((fake_cuda_launches ? fake_cuda_launches() : 0) - before);
	}
	out->number[TOOK] = process_clock() - since;
	twin_free(&x);
	cudaStreamDestroy(queue);
	leave(out, st, &err);
}

static void try_death(const char *what, const char *const *settings)
{
	fault f = {0, GRADCOMP_SUM};
	const outcome *o = run_processes(3, 30, settings, fails, &f);
	int right = 1;
	double took = 0;
	for (int r = 0; r < 3; r += 2) {
		right &= !o[r].failed && o[r].status == GRADCOMP_ERR_PEER && strstr(o[r].text, "rank 1");
		took = fmax(took, o[r].number[TOOK]);
	}
	ok(right && took < 6, "%s: a rank that dies in a call is named after %.1f s: \"%s\"", what, took, o[0].text);
}

static void try_launches(const char *const *settings)
{
	fault f = {-1, GRADCOMP_MAX};
	const outcome *o = run_processes(2, 30, settings, fails, &f);
	long count = (long)o[1].number[1];
	int wrong = o[0].status || o[1].status || o[0].failed || o[1].failed;
	for (f.launch = 1; !wrong && f.launch <= count; f.launch++) {
		o = run_processes(2, 30, settings, fails, &f);
		wrong = o[1].status != GRADCOMP_ERR_IO || !strstr(o[1].text, "a launch failed: ") || !o[0].status ||
		        o[0].failed || o[1].failed;
	}
	ok(!wrong && count > 1, "each of %ld launches of a call that fails ends it: \"%s\"", count, o[1].text);
}

/* Rank 1 cannot, or would take another collective: said on all, and host memory serves on. */
static void lacks(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0}, later = {0};
	float x[4] = {1, 2, 3, 4};
	(void)arg;
	gradcomp_status st = gradcomp_allreduce_on(w, &where, x, 4, GRADCOMP_F32, GRADCOMP_SUM, &err);
	out->failed = gradcomp_allreduce(w, x, 4, GRADCOMP_F32, GRADCOMP_SUM, &later) || x[3] != (float)(4 * P);
	if (out->failed)
		printf("# rank %d: %s\n", rank, later.text);
	leave(out, st, &err);
}

static void lacks_device(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	if (rank == 1)
		setenv("FAKE_CUDA_DEVICES", "0", 1);
	lacks(job, rank, P, out, arg);
}

int main(void)
{
	const char *const plain[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	const char *const ring[] = {"transport.timeout=5", "gradcomp.log=error", "gradcomp.collective=ring", NULL};
	const char *const tree[] = {"transport.timeout=5", "gradcomp.log=error", "gradcomp.collective=tree", NULL};
	const char *const absent[] = {"transport.timeout=5", "gradcomp.log=warn", "gradcomp.device_collective=absent",
	                              NULL};
	const char *const *const all[] = {plain, ring, tree};
	static const char *const what[] = {"over nccl", "through host memory by ring", "through host memory by tree"};
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	test_seed_value = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 0) : (uint64_t)now.tv_nsec;
	printf("# seed %llu\n", (unsigned long long)test_seed_value);
	for (int k = 0; k < 3; k++)
		for (int P = k == 2 ? 4 : 1; P <= 4; P += 1 + (k > 0 && P > 1)) {
			int failed = 0, by_nccl = 0, large = 2;
			const outcome *o = run_processes(P, 120, all[k], alike, &large);
			for (int r = 0; r < P; r++) {
				failed |= o[r].failed;
				by_nccl |= o[r].number[FROM_NCCL] > 0;
			}
			ok(!failed && (!fake_cuda_allocations || by_nccl == (k == 0)),
			   "%s, %d ranks: every call is as in host memory", what[k], P);
		}
	try_death("over nccl", plain);
	try_death("through host memory", ring);
	if (!fake_cuda_allocations)
		return done_testing();
	try_launches(plain);
	const outcome *o = run_processes(3, 30, plain, lacks_device, NULL);
	ok(!o[0].failed && !o[1].failed && o[0].status && o[0].status == o[1].status && o[2].status == o[0].status &&
	           strstr(o[0].text, "rank 1 on") && strstr(o[1].text, "no CUDA device"),
	   "a rank without a device: said on all, and the job goes on: \"%s\"", o[0].text);
	/* Said once, by rank 0. */
	const int was = dup(2), to = memfd_create("log", MFD_CLOEXEC);
	char said[2048] = "";
	int large = 0;
	dup2(to, 2);
	o = run_processes(2, 30, absent, alike, &large);
	dup2(was, 2);
	const char *once = pread(to, said, sizeof said - 1, 0) > 0
	                           ? strstr(said, "go by 'ring', through host memory, since 'absent'")
	                           : NULL;
	ok(!o[0].failed && !o[1].failed && once && !strstr(once + 1, "go by"),
	   "without a collective for devices host memory serves, which rank 0 says once: %.*s",
	   (int)strcspn(said, "\n"), said);
	close(was);
	close(to);
	return done_testing();
}
