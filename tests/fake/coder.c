/* Coders of shards in GPU memory, against the same in host memory: to the bit where the order of sums
 * is the same (gathers; reductions on two ranks), blocks of odd and no lengths, residuals, NaN, 16-bit
 * numbers, a state that is taken up; no allocation and no host wait once there was a call of each kind,
 * launches that fail, ranks that die, and an allocator of the program's. */
#include "tests/fake/arena.h"

#include "gradcomp/coder.h"

enum { WORST, WAITED, ALLOCATED, HOST_BYTES, DEVICE_BYTES };
enum { TOOK = 1, BLOCKS_TAKEN = 1, LEFT };
enum { DIES_AFTER_MS = 200 };
enum { STEPS = 6, POISONED = 2, STEADY = 3 };

/* The fake's; on a real device there is none, and what needs a fake is passed over. */
__attribute__((weak)) extern long fake_cuda_allocations(void);
__attribute__((weak)) extern long fake_cuda_waits(void);
__attribute__((weak)) extern void fake_cuda_fail_launch(long k);

typedef struct run {
	const char *compressor, *host, *device; /* collectives */
	double within;
	gradcomp_dtype dtype;
	int fails; /* rank 1's k-th launch of the fourth step, from 1; 0: none */
} run;

/* One side: a coder, and what its calls read and write. */
typedef struct side {
	gradcomp_coder *coder;
	cudaStream_t queue; /* NULL: host memory */
	gradcomp_dtype dtype;
	uint64_t counts[MAX_RANKS], total, own, begin;
	char *full, *part; /* pinned, where the test looks */
	void *in, *out;    /* the coder gets these; the same on the host */
} side;

static size_t bytes_of(const side *s, uint64_t n)
{
	return n * gradcomp_dtype_bytes(s->dtype);
}

static void *memory(int device, size_t bytes)
{
	void *p;
	cuda_must(device ? cudaMalloc(&p, bytes + 1) : cudaHostAlloc(&p, bytes + 1, 0), "memory");
	return p;
}

static gradcomp_status side_open(side *s, gradcomp_group *w, int rank, int P, const run *run, int device,
                                 gradcomp_error *err)
{
	memset(s, 0, sizeof *s);
	s->dtype = run->dtype;
	for (int r = 0; r < P; r++) {
		s->counts[r] = r == 2 ? 0 : 5003 + 77 * (uint64_t)r;
		s->begin += r < rank ? s->counts[r] : 0;
		s->total += s->counts[r];
	}
	s->own = s->counts[rank];
	s->full = memory(0, bytes_of(s, s->total));
	s->part = memory(0, bytes_of(s, s->own));
	s->in = device ? memory(1, bytes_of(s, s->total)) : s->full;
	s->out = device ? memory(1, bytes_of(s, s->own)) : s->part;
	if (device)
		cuda_must(cudaStreamCreateWithFlags(&s->queue, cudaStreamNonBlocking), "a stream");
	gradcomp_coder_options o = {.struct_size = sizeof o,
	                            .collective = device ? run->device : run->host,
	                            .seed = 7,
	                            .name = device ? "on the device" : "on the host",
	                            .device = device ? GRADCOMP_CUDA : GRADCOMP_HOST,
	                            .queue = s->queue,
	                            .device_alloc = gpu_memory.alloc,
	                            .device_release = gpu_memory.release,
	                            .device_ctx = gpu_memory.ctx};
	return gradcomp_coder_create(w, run->compressor, &o, &s->coder, err);
}

static void side_close(side *s)
{
	gradcomp_coder_free(s->coder);
	cudaFreeHost(s->full);
	cudaFreeHost(s->part);
	if (!s->queue)
		return;
	cudaFree(s->in);
	cudaFree(s->out);
	cudaStreamDestroy(s->queue);
}

static void move(const side *s, void *to, const void *from, uint64_t n)
{
	if (s->queue)
		cuda_must(cudaMemcpyAsync(to, from, bytes_of(s, n), cudaMemcpyDefault, s->queue), "copy");
}

static void put(const side *s, char *at, uint64_t i, float v)
{
	uint32_t word;
	memcpy(&word, &v, 4);
	memcpy(at + bytes_of(s, i), s->dtype == GRADCOMP_F32 ? (char *)&word : (char *)&word + 2, bytes_of(s, 1));
}

static float get(const side *s, const char *at, uint64_t i)
{
	uint32_t word = 0;
	float v;
	memcpy(s->dtype == GRADCOMP_F32 ? (char *)&word : (char *)&word + 2, at + bytes_of(s, i), bytes_of(s, 1));
	memcpy(&v, &word, 4);
	return v;
}

/* A reduction of a gradient, and then a gather of what came of it, one behind the other. */
static gradcomp_status step(side *s, int rank, int at, int poison, gradcomp_error *err)
{
	gradcomp_coder_request *requests[2] = {NULL, NULL};
	for (uint64_t i = 0; i < s->total; i++)
		put(s, s->full, i, made(rank, at, 0, i));
	if (poison)
		put(s, s->full, 3, NAN);
	move(s, s->in, s->full, s->total);
	gradcomp_status st = gradcomp_coder_reduce_scatter_start(s->coder, s->in, s->out, s->counts, s->dtype, 0.5, 3,
	                                                         &requests[0], err);
	if (!st)
		st = gradcomp_coder_wait(requests[0], err);
	move(s, s->part, s->out, s->own);
	if (!st)
		st = gradcomp_coder_all_gather_start(s->coder, s->out, s->in, s->counts, s->dtype, &requests[1], err);
	if (!st)
		st = gradcomp_coder_wait(requests[1], err);
	move(s, s->full, s->in, s->total);
	if (s->queue)
		cuda_must(cudaStreamSynchronize(s->queue), "the stream");
	return st;
}

static double distance(const side *a, const side *b)
{
	double worst = 0;
	for (uint64_t i = 0; i < a->own + a->total; i++) {
		int part = i < a->own;
		uint64_t k = part ? i : i - a->own;
		float x = get(a, part ? a->part : a->full, k), y = get(b, part ? b->part : b->full, k);
		double off = isnan(x) && isnan(y) ? 0 : fabs((double)x - y);
		if (!(off <= worst))
			worst = isnan(off) ? INFINITY : off;
	}
	return worst;
}

static int told(int rank, gradcomp_status st, const gradcomp_error *err)
{
	if (st)
		printf("# rank %d: %s\n", rank, err->text);
	return st != 0;
}

static void resume(side *dev, side *again, int rank, outcome *out, gradcomp_error *err)
{
	uint64_t bytes = 0;
	gradcomp_status st = gradcomp_coder_save(dev->coder, NULL, 0, &bytes, err);
	void *state = malloc(bytes + 1);
	if (!st)
		st = gradcomp_coder_save(dev->coder, state, bytes, &bytes, err);
	if (!st)
		st = gradcomp_coder_load(again->coder, state, bytes, err);
	free(state);
	out->failed |= told(rank, st, err);
}

static double bytes_sent(const side *s)
{
	gradcomp_coder_stats stats = {.struct_size = sizeof stats};
	gradcomp_coder_get_stats(s->coder, &stats);
	return stats.wire_bytes;
}

static void alike(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	side host, dev, again;
	gradcomp_coder_stats stats = {.struct_size = sizeof stats};
	long waits = 0, allocations = 0;
	double sent[2] = {0};
	gradcomp_status st = side_open(&host, w, rank, P, run, 0, &err);
	if (!st)
		st = side_open(&dev, w, rank, P, run, 1, &err);
	if (!st)
		st = side_open(&again, w, rank, P, run, 1, &err);
	out->failed = told(rank, st, &err);
	for (int s = 0; !out->failed && s < STEPS; s++) {
		int poison = s == POISONED && rank == P - 1;
		if (s == STEADY) {
			allocations = fake_cuda_allocations ? fake_cuda_allocations() : 0;
			waits = fake_cuda_waits ? fake_cuda_waits() : 0;
			sent[0] = bytes_sent(&host);
			sent[1] = bytes_sent(&dev);
		}
		out->failed |= told(rank, step(&host, rank, s, poison, &err), &err);
		out->failed |= told(rank, step(&dev, rank, s, poison, &err), &err);
		out->number[WORST] = fmax(out->number[WORST], distance(&host, &dev));
		for (size_t i = 0; i < bytes_of(&dev, dev.total); i++)
			out->mark = mixed(out->mark ^ (unsigned char)dev.full[i]) + 1;
	}
	/* One a step is the test's own. */
	if (fake_cuda_waits) {
		out->number[WAITED] = (double)(fake_cuda_waits() - waits - (STEPS - STEADY));
		out->number[ALLOCATED] = (double)(fake_cuda_allocations() - allocations);
	}
	if (!out->failed) {
		out->number[HOST_BYTES] = bytes_sent(&host) - sent[0];
		out->number[DEVICE_BYTES] = bytes_sent(&dev) - sent[1];
		resume(&dev, &again, rank, out, &err);
		out->failed |= told(rank, step(&dev, rank, STEPS, 0, &err), &err);
		out->failed |= told(rank, step(&again, rank, STEPS, 0, &err), &err);
		out->failed |= distance(&again, &dev) != 0;
		gradcomp_coder_get_stats(dev.coder, &stats);
		out->failed |=
			!(stats.wire_bytes > 0) || stats.all_gathers != STEPS + 1 || stats.reduce_scatters != STEPS + 1;
	}
	side_close(&again);
	side_close(&dev);
	side_close(&host);
}

static void check(int P, const char *const *settings, run run)
{
	int failed = 0, differ = 0;
	double worst = 0, waited = 0, allocated = 0, sent[2] = {0};
	const outcome *o = run_processes(P, 60, settings, alike, &run);
	for (int r = 0; r < P; r++) {
		failed |= o[r].failed;
		differ |= o[r].mark != o[0].mark;
		worst = fmax(worst, o[r].number[WORST]);
		waited = fmax(waited, o[r].number[WAITED]);
		allocated = fmax(allocated, o[r].number[ALLOCATED]);
		for (int d = 0; d < 2; d++)
			sent[d] += o[r].number[HOST_BYTES + d];
	}
	ok(!failed && !differ && worst <= run.within, "%s, %d ranks, %s: as on the host (off by %.2g)", run.compressor,
	   P, run.dtype == GRADCOMP_F32 ? "float" : "bfloat16", worst);
	if (failed || differ)
		printf("# %s%s\n", failed ? "a call failed, or resuming differs, or a rank was killed; " : "",
		       differ ? "ranks differ" : "");
	if (fake_cuda_waits)
		ok(waited == 0 && allocated == 0, "... %g host waits and %g allocations when every call was made once",
		   waited, allocated);
	if (run.device && !strcmp(run.host, run.device))
		ok(fabs(sent[1] - sent[0]) <= 0.05 * sent[0],
		   "... %.0f bytes counted on the host, %.0f computed on the device", sent[0], sent[1]);
}

/* Rank 1's fails; the other learns of it in that call or a later one. */
static void fails(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_error err = {0};
	side dev;
	gradcomp_status st = side_open(&dev, gradcomp_job_world(job), rank, P, run, 1, &err);
	for (int s = 0; !st && s < STEPS + 2; s++) {
		if (s == STEADY && rank == 1)
			fake_cuda_fail_launch(run->fails);
		st = step(&dev, rank, s, 0, &err);
	}
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
	side_close(&dev);
}

/* For as long as the process lives. */
static void stand_still(void *unused)
{
	(void)unused;
	for (;;)
		pause();
}

/* Rank 1 dies when the others have their part of a call on the device and hers waits for what makes its numbers;
 * or, with `fails`, between two calls. */
static void dies(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_error err = {0};
	double since = process_clock();
	side dev;
	gradcomp_status st = side_open(&dev, gradcomp_job_world(job), rank, P, run, 1, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		since = s <= STEADY ? process_clock() : since;
		if (s != STEADY || (run->fails && rank != 1)) {
			st = step(&dev, rank, s, 0, &err);
			continue;
		}
		if (rank == 1)
			cuda_must(cudaLaunchHostFunc(dev.queue, stand_still, NULL), "a function of the host");
		if (!run->fails)
			st = gradcomp_coder_reduce_scatter(dev.coder, dev.in, dev.out, dev.counts, dev.dtype, 0.5, 3,
			                                   &err);
		if (rank == 1) {
			usleep(1000 * DIES_AFTER_MS); /* the others' devices wait for it by now */
			raise(SIGKILL);
		}
		/* This comes to an end, and nothing else says why yet. */
		if (!st)
			cuda_must(cudaStreamSynchronize(dev.queue), "the stream");
	}
	side_close(&dev);
	out->number[TOOK] = process_clock() - since;
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

static void check_dies(const char *const *settings, run run)
{
	const outcome *o = run_processes(3, 60, settings, dies, &run);
	int wrong = o[1].failed != -SIGKILL;
	for (int r = 0; r < 3; r += 2)
		wrong |= o[r].failed || o[r].status != GRADCOMP_ERR_PEER || !strstr(o[r].text, "rank 1 on") ||
		         !(o[r].number[TOOK] < 10);
	ok(!wrong, "%s: rank 1 dies %s: \"%s\" after %.1f s", run.compressor, run.fails ? "between calls" : "in a call",
	   o[0].text, o[0].number[TOOK]);
	if (!wrong && !fake_cuda_waits)
		printf("figure: until the others know, when %s (a coder of %s) = %.0f ms\n",
		       run.fails ? "a rank is killed between calls" : "a rank is killed in a call", run.compressor,
		       1e3 * fmax(o[0].number[TOOK], o[2].number[TOOK]) - DIES_AFTER_MS);
	for (int r = 0; wrong && r < 3; r++)
		printf("# rank %d: failed %d, status %d \"%s\" after %.1f s\n", r, o[r].failed, o[r].status, o[r].text,
		       o[r].number[TOOK]);
}

/* In the program's memory, the n-th block of which it may refuse to rank 1; all of it is given back. */
static void lent(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	side usual = {0}, dev = {0};
	arena a;
	gradcomp_status st = side_open(&usual, w, rank, P, run, 1, &err);
	out->failed = st;
	arena_open(&a);
	a.refuse = rank == 1 ? run->fails : 0;
	if (!st)
		st = side_open(&dev, w, rank, P, run, 1, &err);
	for (int s = 0; !st && s < STEPS; s++) {
		if (!run->fails)
			st = step(&usual, rank, s, s == POISONED, &err);
		if (!st)
			st = step(&dev, rank, s, s == POISONED, &err);
		if (!st && s == STEADY && !run->fails) {
			out->number[BLOCKS_TAKEN] = a.n;
			resume(&dev, &dev, rank, out, &err);
		}
		out->number[WORST] = run->fails ? 0 : fmax(out->number[WORST], distance(&usual, &dev));
	}
	side_close(&dev);
	side_close(&usual);
	out->number[LEFT] = arena_close(&a);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

static void check_lent(const char *const *settings, run run)
{
	const outcome *o = run_processes(2, 60, settings, lent, &run);
	int wrong = 0, count = (int)o[1].number[BLOCKS_TAKEN];
	for (int r = 0; r < 2; r++)
		wrong |= o[r].failed || o[r].status || o[r].number[WORST] > 0 || o[r].number[LEFT] > 0;
	ok(!wrong && count > 1,
	   "%s in the program's memory, %d blocks: as in CUDA's, and all is given back (%g left) %s", run.compressor,
	   count, o[1].number[LEFT], o[1].text);
	for (run.fails = 1; !wrong && run.fails <= count; run.fails++) {
		o = run_processes(2, 60, settings, lent, &run);
		wrong = o[0].failed || o[1].failed || !o[0].status || o[1].status != GRADCOMP_ERR_NOMEM ||
		        o[0].number[LEFT] > 0 || o[1].number[LEFT] > 0 ||
		        !strstr(o[1].text, "device_alloc() gave none");
		if (wrong)
			printf("# block %d: status %d and %d, \"%s\" and \"%s\", %g and %g are left\n", run.fails,
			       o[0].status, o[1].status, o[0].text, o[1].text, o[0].number[LEFT], o[1].number[LEFT]);
	}
	ok(!wrong, "... each of which that is not given ends the call: \"%s\"", o[1].text);
}

/* Tries what a coder on a device cannot be made of. */
static void refused(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_error err = {0};
	side dev;
	out->status = side_open(&dev, gradcomp_job_world(job), rank, P, run, 1, &err);
	snprintf(out->text, sizeof out->text, "%s", err.text);
	if (!out->status)
		side_close(&dev);
}

static void check_refused(const char *const *settings, run run, const char *says)
{
	const outcome *o = run_processes(2, 60, settings, refused, &run);
	if (strstr(o[0].text, "is not installed")) {
		skip("it is not installed", "'%s' is refused", run.compressor);
		return;
	}
	ok(o[0].status == GRADCOMP_ERR_UNSUPPORTED && o[1].status == GRADCOMP_ERR_UNSUPPORTED &&
	           strstr(o[0].text, says),
	   "'%s' over '%s' is refused: %s", run.compressor, run.device ? run.device : "the usual", o[0].text);
}

enum { IN_LEVELS = 1 };

/* Nobody names a collective: a coder of codes goes in two levels where nodes have several ranks. */
static void usually(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_error err = {0};
	side dev;
	gradcomp_status st = side_open(&dev, gradcomp_job_world(job), rank, P, run, 1, &err);
	for (int s = 0; !st && s < 3; s++)
		st = step(&dev, rank, s, 0, &err);
	if (dev.coder)
		out->number[IN_LEVELS] = !strncmp(gradcomp_coder_collective(dev.coder), "hier", 4);
	side_close(&dev);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

static void check_usual(const char *const *settings, int per_node, run run, int in_levels, const char *what)
{
	processes_per_node = per_node;
	const outcome *o = run_processes(3, 60, settings, usually, &run);
	processes_per_node = 0;
	if (o[0].failed == ENOSYS) {
		skip("there are no user namespaces", "%s %s", run.compressor, what);
		return;
	}
	int wrong = 0;
	for (int r = 0; r < 3; r++)
		wrong |= o[r].failed || o[r].status || (int)o[r].number[IN_LEVELS] != in_levels;
	ok(!wrong, "%s %s goes over %s %s", run.compressor, what, in_levels ? "hier" : "nccl", o[0].text);
}

/* A call whose memory is elsewhere is refused, and the next one is as if nobody had tried. */
static void elsewhere(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const run *run = arg;
	gradcomp_error err = {0}, why[2] = {{0}, {0}};
	gradcomp_coder_request *request = NULL;
	side dev;
	gradcomp_status st = side_open(&dev, gradcomp_job_world(job), rank, P, run, 1, &err), refused[2] = {0, 0};
	if (!st) {
		refused[0] = gradcomp_coder_reduce_scatter_start(dev.coder, dev.full, dev.out, dev.counts, dev.dtype,
		                                                 0.5, 3, &request, &why[0]);
		refused[1] = gradcomp_coder_all_gather_start(dev.coder, dev.out, dev.full, dev.counts, dev.dtype,
		                                             &request, &why[1]);
		st = step(&dev, rank, 0, 0, &err);
	}
	out->failed = refused[0] != GRADCOMP_ERR_INVALID || refused[1] != GRADCOMP_ERR_INVALID ||
	              !strstr(why[0].text, "'on the device': in of the reduce-scatter is in host memory") ||
	              !strstr(why[1].text, "'on the device': out of the all-gather is in host memory");
	side_close(&dev);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : why[0].text);
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	static const run runs[] = {
		{.compressor = "block:bits=8", .host = "direct"},
		{.compressor = "block:bits=4,rounding=stochastic", .host = "direct", .within = 0.5},
		{.compressor = "block:bits=4", .host = "direct", .dtype = GRADCOMP_BF16},
		{.compressor = "fp8", .host = "direct"},
		{.compressor = "natural", .host = "direct", .within = 2},
		{.compressor = "cast", .host = "direct"},
		{.compressor = "cast:type=fp16", .host = "hier:ranks_per_node=2", .device = "hier:ranks_per_node=2"},
		/* Two nodes of one rank, and of two; all on one node, where nothing is coded; ranks of a node that
		 * are no neighbours. */
		{.compressor = "block:bits=8", .host = "hier:ranks_per_node=1", .device = "hier:ranks_per_node=1"},
		{.compressor = "block:bits=8", .host = "hier:ranks_per_node=2", .device = "hier:ranks_per_node=2"},
		{.compressor = "block:bits=4",
	         .host = "hier:ranks_per_node=3",
	         .device = "hier:ranks_per_node=3",
	         .dtype = GRADCOMP_BF16},
		{.compressor = "none", .host = "ring", .device = "nccl"},
		{.compressor = "none", .host = "ring", .dtype = GRADCOMP_BF16, .within = 1e-2},
	};
	test_seed_value = 20261123;
	for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
		run more = runs[i];
		check(2, settings, more);
		/* Sums in another order: a code may then round the other way. */
		more.within = fmax(more.within, strncmp(more.compressor, "none", 4) ? 0.3 : 1e-2);
		check(4, settings, more);
	}
	for (int k = 1; fake_cuda_fail_launch && k < 12; k += 5) {
		run failing = {.compressor = "block:bits=8", .fails = k};
		const outcome *o = run_processes(2, 60, settings, fails, &failing);
		ok(o[1].status == GRADCOMP_ERR_IO && strstr(o[1].text, "a launch failed") && o[0].status,
		   "launch %d fails: %s; the other: %s", k, o[1].text, o[0].text);
	}
	const char *const impatient[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	check_dies(impatient, (run){.compressor = "block:bits=8"});
	check_dies(impatient, (run){.compressor = "block:bits=8", .device = "hier:ranks_per_node=2"});
	check_dies(impatient, (run){.compressor = "none"});
	if (fake_cuda_waits) {
		setenv("FAKE_NCCL_SILENT", "1", 1);
		check_dies(impatient, (run){.compressor = "block:bits=8"});
		unsetenv("FAKE_NCCL_SILENT");
	}
	check_dies(impatient, (run){.compressor = "block:bits=8", .fails = 1});
	check_lent(settings, (run){.compressor = "block:bits=8"});
	check_lent(settings, (run){.compressor = "none", .dtype = GRADCOMP_BF16});
	run where = {.compressor = "block:bits=8"};
	const outcome *o = run_processes(2, 60, settings, elsewhere, &where);
	ok(!o[0].failed && !o[1].failed && !o[0].status && !o[1].status, "memory of the host is refused: \"%s\"",
	   o[0].text);
	/* With a node of two ranks and one of one. */
	const char *const named[] = {"transport.timeout=20", "gradcomp.log=error", "gradcomp.device_collective=nccl",
	                             NULL};
	check_usual(settings, 2, (run){.compressor = "block:bits=4"}, 1, "on 2 nodes");
	check_usual(settings, 2, (run){.compressor = "none"}, 0, "on 2 nodes");
	check_usual(settings, 1, (run){.compressor = "block:bits=4"}, 0, "with a node a rank");
	check_usual(settings, 0, (run){.compressor = "block:bits=4"}, 0, "on 1 node");
	check_usual(named, 2, (run){.compressor = "block:bits=4"}, 0, "on 2 nodes, which is set,");
	check_refused(
		settings, (run){.compressor = "lossless"},
		"in host memory alone; compressors that shards on a GPU can be sent with: block, cast, fp4, fp8, natural, "
		"none");
	check_refused(settings, (run){.compressor = "block", .device = "ring"},
	              "takes no CUDA memory, in which shards are; collectives that do: hier, nccl");
	return done_testing();
}
