/* A machine or a program that does not use GPUs as it should is told so before anybody waits: by
 * the rank that has it and by all others, in a sentence that names it. */
#include "tests/fake/gpu_model.h"
#include "tests/support/pace.h"

extern long fake_cuda_allocations(void);
extern void fake_cuda_fail_allocation(long k);

enum { ALL = -1, WAS_REFUSED = 0, TOOK = 1, ASKED = 2, OPEN = 3 };

typedef struct variable {
	int rank; /* ALL: of all ranks */
	const char *name, *value;
} variable;

typedef struct odd {
	const char *what, *compressor, *collective;
	variable set[10];
	int who;             /* it fails by itself; ALL: all do, with the same words */
	const char *says[3]; /* what they say; NULL: the step works */
} odd;

static void leave(outcome *out, gradcomp_status st, const gradcomp_error *err)
{
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err->text : "");
}

/* Loads the file that the variable names; false: it cannot be. */
static int loads(const char *variable)
{
	void *library = dlopen(getenv(variable), RTLD_NOW | RTLD_LOCAL);
	if (!library)
		printf("# %s: %s\n", variable, dlerror());
	return library != NULL;
}

/* Asks CUDA for nothing by itself: there may be none. */
static void makes(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const odd *o = arg;
	gradcomp_tensor_desc d = {.name = "w", .dims = tensor_dims[3], .ndim = 1};
	gradcomp_reducer_options options = {.struct_size = sizeof options,
	                                    .compressor = o->compressor,
	                                    .collective = o->collective,
	                                    .device = GRADCOMP_CUDA};
	gradcomp_reducer *red = NULL;
	gradcomp_error err = {0};
	void *grad = NULL;
	(void)P;
	for (const variable *v = o->set; v->name; v++)
		if (v->rank == rank || v->rank == ALL)
			setenv(v->name, v->value, 1);
	if (getenv("LOADS_NCCL") && !loads("FAKE_NCCL_OTHER"))
		out->failed = 1;
	double since = process_clock();
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), &d, 1, &options, &red, &err);
	if (!st) {
		cuda_must(cudaMalloc(&grad, tensor_numel(3) * sizeof(float)), "device memory");
		cuda_must(cudaMemsetAsync(grad, 0, tensor_numel(3) * sizeof(float), NULL), "zeroes");
		st = gradcomp_reducer_ready(red, 0, grad, &err);
	}
	if (!st)
		st = gradcomp_reducer_wait(red, &err);
	out->number[TOOK] = process_clock() - since;
	if (grad)
		cuda_must(cudaStreamSynchronize(NULL), "the stream");
	gradcomp_reducer_free(red);
	cudaFree(grad);
	out->number[OPEN] = (double)fake_nccl("fake_nccl_live");
	leave(out, st, &err);
}

static int says(const char *text, const char *const *what)
{
	int all = 1;
	for (int k = 0; k < 3 && what[k]; k++)
		all &= strstr(text, what[k]) != NULL;
	return all;
}

static void try_odd(const odd *o, const char *const *settings)
{
	const outcome *r = run_processes(3, 30, settings, makes, (void *)(uintptr_t)o);
	int wrong = 0;
	for (int k = 0; k < 3; k++) {
		int here = 0;
		if (!o->says[0])
			here = r[k].status || r[k].failed;
		else
			here = !r[k].status || r[k].failed || !says(r[k].text, o->says) ||
			       (o->who != ALL && k != o->who && !strstr(r[k].text, "rank 1"));
		here |= r[k].number[OPEN] > 0 || !in_time(r[k].number[TOOK], 4);
		if (here)
			printf("# rank %d: failed %d, status %d after %.1f s, %g communicators: \"%s\"\n", k,
			       r[k].failed, r[k].status, r[k].number[TOOK], r[k].number[OPEN], r[k].text);
		wrong |= here;
	}
	ok(!wrong, "%s: %s%s%s", o->what, o->says[0] ? "\"" : "works", r[o->who == 1 ? 0 : 2].text,
	   o->says[0] ? "\"" : "");
}

#define ONE_GPU(first, second, uuid, other_uuid) \
	{first, "NCCL_HOSTID", "a"}, {second, "NCCL_HOSTID", "a"}, {first, "FAKE_CUDA_BUS", "0000:1b:00.0"}, \
		{second, "FAKE_CUDA_BUS", "0000:1b:00.0"}, {first, "FAKE_CUDA_UUID", uuid}, \
	{ \
		second, "FAKE_CUDA_UUID", other_uuid \
	}

/* A gradient in the wrong memory is refused by the tensor's name, and the step is as if nobody had tried. */
typedef struct half {
	const char *spec, *collective;
	gradcomp_device device;
	uint32_t delay;
} half;

static void half_there(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const half *h = arg;
	gradcomp_error err = {0};
	gpu_model m;
	void *there;
	(void)P;
	cuda_must(cudaMalloc(&there, tensor_numel(4) * sizeof(float)), "device memory");
	gpu_delay = h->delay;
	if (h->device == GRADCOMP_HOST && !loads("FAKE_CUDA_DRIVER_LIBRARY"))
		out->failed = 1;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), h->device, GRADCOMP_F32, h->spec,
	                                    h->collective, 5000, &err);
	for (int s = 0; !st && s < 3; s++) {
		gradcomp_error why = {0};
		gradcomp_status refused =
			gradcomp_reducer_ready(m.red, 4, h->device == GRADCOMP_CUDA ? m.host[4] : there, &why);
		out->number[WAS_REFUSED] +=
			refused == GRADCOMP_ERR_INVALID && strstr(why.text, "tensor 'w2'") &&
			strstr(why.text, h->device == GRADCOMP_CUDA ? "is in host memory" : "is in memory of a GPU");
		snprintf(out->text, sizeof out->text, "%s", why.text);
		st = gpu_step(&m, rank, s, 0, &err);
		out->mark ^= mixed(gpu_fingerprint(&m) + (uint64_t)s);
	}
	if (m.red)
		gpu_model_close(&m);
	cudaFree(there);
	out->status = st;
	if (st)
		leave(out, st, &err);
}

static void try_half(const half *h, const char *const *settings)
{
	const outcome *o = run_processes(2, 60, settings, half_there, (void *)(uintptr_t)h);
	ok(!o[0].failed && !o[1].failed && !o[0].status && !o[1].status && o[0].number[WAS_REFUSED] == 3 &&
	           o[1].number[WAS_REFUSED] == 3 && (h->delay || o[0].mark == o[1].mark),
	   "%s over %s%s%s: \"%s\"", h->spec, h->collective ? h->collective : "the usual",
	   h->delay ? ", a step late" : "", h->device == GRADCOMP_CUDA ? "" : ", in host memory", o[0].text);
}

typedef struct starving {
	const char *compressor, *collective;
	long k; /* rank 1 gets no memory the k-th time that it asks, the test's own not counted; 0: it does */
} starving;

enum { OWN = 2 * N_TENSORS }; /* gpu_model_open() asks so often before the reducer does */

static void starves(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const starving *s = arg;
	gradcomp_error err = {0};
	gpu_model m;
	long before = fake_cuda_allocations();
	(void)P;
	if (rank == 1 && s->k)
		fake_cuda_fail_allocation(OWN + s->k);
	double since = process_clock();
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, s->compressor,
	                                    s->collective, 5000, &err);
	for (int k = 0; !st && k < 4; k++)
		st = gpu_step(&m, rank, k, 0, &err);
	out->number[TOOK] = process_clock() - since;
	out->number[ASKED] = (double)(fake_cuda_allocations() - before - OWN);
	if (m.red)
		gpu_model_close(&m);
	out->number[OPEN] = (double)fake_nccl("fake_nccl_live");
	leave(out, st, &err);
}

static void try_starving(const char *compressor, const char *collective, const char *const *settings)
{
	starving s = {compressor, collective, 0};
	const outcome *o = run_processes(2, 30, settings, starves, &s);
	const long asked = (long)o[1].number[ASKED];
	int wrong = o[0].status || o[1].status || o[0].failed || o[1].failed;
	for (s.k = 1; s.k <= asked; s.k++) {
		if (s.k < asked && !tap_in_part((unsigned long)s.k, 3))
			continue;
		o = run_processes(2, 30, settings, starves, &s);
		int here = o[1].status != GRADCOMP_ERR_NOMEM || !o[0].status || o[0].failed || o[1].failed ||
		           !strstr(o[1].text, "memory") || !strstr(o[0].text, "rank 1") || o[0].number[OPEN] > 0 ||
		           o[1].number[OPEN] > 0 || !in_time(o[0].number[TOOK], 6);
		if (here)
			printf("# %s over %s, block %ld of %ld: status %d and %d after %.1f s, \"%s\" and \"%s\", %g and %g "
			       "communicators\n",
			       compressor, collective, s.k, asked, o[0].status, o[1].status, o[0].number[TOOK],
			       o[0].text, o[1].text, o[0].number[OPEN], o[1].number[OPEN]);
		wrong |= here;
	}
	ok(!wrong && asked > 5, "%s over %s: a GPU with no memory for one of %ld blocks: \"%s\"", compressor,
	   collective, asked, o[0].text);
}

static void trains(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const char *const *spec = arg;
	gradcomp_error err = {0};
	gpu_model m;
	(void)P;
	gpu_delay = 0;
	gradcomp_status st =
		gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, spec[0], spec[1], 5000, &err);
	for (int k = 0; !st && k < 3; k++)
		st = gpu_step(&m, rank, k, 0, &err);
	if (m.red)
		gpu_model_close(&m);
	leave(out, st, &err);
}

/* A SPEC by hand stays, and the job's last line has what it cost, if sums of 16-bit floats were timed and are faster. */
static void try_costly(const char *compressor, const char *collective, int costs)
{
	static const char *const informs[] = {"transport.timeout=5", "gradcomp.log=info", NULL};
	const char *const spec[] = {compressor, collective};
	char text[4096] = "";
	const int was = dup(2), to = memfd_create("log", MFD_CLOEXEC);
	dup2(to, 2);
	const outcome *o = run_processes(2, 60, informs, trains, (void *)(uintptr_t)spec);
	dup2(was, 2);
	close(was);
	ssize_t bytes = pread(to, text, sizeof text - 1, 0);
	close(to);
	const char *line = strstr(text, " on 2 ranks of 1 node: 3 steps"),
		   *at = line ? strstr(line, " ms where all sums of cast:type=bf16 take ") : NULL;
	const char *said = line ? line : "";
	/* Four times the bytes take as much longer, on two streams too. */
	const char *exchange = at ? strstr(line, "exchange ") : NULL;
	if (costs && exchange)
		costs = atof(exchange + 9) > 3 * atof(at + sizeof " ms where all sums of cast:type=bf16 take" - 1) ? 1
		                                                                                                   : -1;
	ok(bytes > 0 && line && !o[0].status && !o[1].status && !o[0].failed && !o[1].failed && costs == !!at,
	   "%s over %s: %s what it cost%s %s%.*s", compressor, collective,
	   costs ? "the report says" : "nothing is said of", at ? ":" : "", o[0].text,
	   at ? (int)strcspn(said, "\n") : 0, said);
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	static const odd all[] = {
		{"a driver that is older than the runtime",
	         "none",
	         NULL,
	         {{1, "FAKE_CUDA_DRIVER", "11080"}},
	         1,
	         {"driver of this machine is for CUDA 11.8", "compiled with CUDA 12.0",
	          "install a driver for CUDA 12"}},
		{"no driver", "none", NULL, {{1, "FAKE_CUDA_DRIVER", "0"}}, 1, {"there is no NVIDIA driver"}},
		{"a rank without a GPU",
	         "topk:density=0.1",
	         NULL,
	         {{1, "FAKE_CUDA_DEVICES", "0"}, {1, "CUDA_VISIBLE_DEVICES", ""}},
	         1,
	         {"no CUDA device is visible", "--gpus-per-task=1"}},
		{"a rank without a GPU, and another collective",
	         "topk:density=0.1",
	         "ring",
	         {{1, "FAKE_CUDA_DEVICES", "0"}},
	         1,
	         {"no CUDA device is visible", "CUDA_VISIBLE_DEVICES is not set"}},
		{"a GPU that the build has no kernels for",
	         "topk:density=0.1",
	         NULL,
	         {{1, "FAKE_CUDA_IMAGE", "0"}},
	         1,
	         {"compute capability 9.0", "sm_90"}},
		{"two ranks on one GPU",
	         "none",
	         NULL,
	         {ONE_GPU(0, 2, "x", "x"), {0, "CUDA_VISIBLE_DEVICES", "0,1"}, {2, "CUDA_VISIBLE_DEVICES", "0"}},
	         ALL,
	         {"ranks 0 and 2 of the group use the same GPU", "0000:1b:00.0", "CUDA_VISIBLE_DEVICES is 0,1 and 0"}},
		{"two ranks on one GPU, in two levels",
	         "topk:density=0.1",
	         "hier:ranks_per_node=2",
	         {ONE_GPU(1, 2, "x", "x")},
	         ALL,
	         {"ranks 1 and 2 of the group use the same GPU", "0000:1b:00.0"}},
		{"two hosts' GPUs of one number",
	         "none",
	         NULL,
	         {ONE_GPU(0, 2, "x", "y"), {2, "NCCL_HOSTID", "b"}},
	         ALL,
	         {NULL}},
		{"two MIG slices of one GPU",
	         "none",
	         NULL,
	         {ONE_GPU(0, 1, "x", "y")},
	         ALL,
	         {"two MIG slices of one GPU", "0000:1b:00.0", "NCCL 2.29.7 does not work"}},
		{"two MIG slices, and NCCL 2.30.7",
	         "none",
	         NULL,
	         {ONE_GPU(0, 1, "x", "y"), {ALL, "FAKE_NCCL_VERSION", "23007"}},
	         ALL,
	         {NULL}},
		{"two ranks on one GPU, and NCCL 2.30.7",
	         "none",
	         NULL,
	         {ONE_GPU(0, 1, "x", "x"), {ALL, "FAKE_NCCL_VERSION", "23007"}},
	         ALL,
	         {"ranks 0 and 1 of the group use the same GPU"}},
		{"two ranks on one GPU, which NCCL 2.30.7 is told of",
	         "none",
	         NULL,
	         {ONE_GPU(0, 1, "x", "x"),
	          {ALL, "FAKE_NCCL_VERSION", "23007"},
	          {ALL, "NCCL_MULTI_RANK_GPU_ENABLE", "1"}},
	         ALL,
	         {NULL}},
		{"an NCCL older than the header, which is known",
	         "topk:density=0.1",
	         NULL,
	         {{ALL, "FAKE_NCCL_VERSION", "21803"}},
	         ALL,
	         {NULL}},
		{"an NCCL later than the header",
	         "topk:density=0.1",
	         "hier:ranks_per_node=2",
	         {{ALL, "FAKE_NCCL_VERSION", "23203"}},
	         ALL,
	         {NULL}},
		{"an NCCL that is too old",
	         "none",
	         "nccl",
	         {{ALL, "FAKE_NCCL_VERSION", "21605"}},
	         ALL,
	         {"libnccl.so.2 is of version 21605", "install NCCL 2.18 or later"}},
		{"a rank whose NCCL is too old",
	         "none",
	         "nccl",
	         {{1, "FAKE_NCCL_VERSION", "2804"}},
	         1,
	         {"libnccl.so.2 is of version 2804"}},
		{"a rank without NCCL, which was asked for",
	         "none",
	         "nccl",
	         {{1, "FAKE_NCCL_ABSENT", "1"}},
	         1,
	         {"libnccl.so.absent", "install NCCL"}},
	};
	test_seed_value = 3;
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
		try_odd(&all[i], settings);

	static const char *const warn[] = {"transport.timeout=5", "gradcomp.log=warn", NULL};
	static const odd twice = {"two NCCLs in one process",
	                          "none",
	                          NULL,
	                          {{1, "LOADS_NCCL", "1"}, {2, "LOADS_NCCL", "1"}},
	                          ALL,
	                          {NULL}};
	char text[2048] = "";
	const int was = dup(2), to = memfd_create("log", MFD_CLOEXEC);
	dup2(to, 2);
	try_odd(&twice, warn);
	dup2(was, 2);
	close(was);
	ssize_t bytes = pread(to, text, sizeof text - 1, 0);
	close(to);
	const char *at = strstr(text, "two NCCLs are loaded in this process");
	ok(bytes > 0 && at && strstr(at, "which gradcomp uses, and ") && strstr(at, "other/libnccl.so.2") &&
	           !strstr(at + 1, "two NCCLs"),
	   "... which one rank says: %.*s", (int)strcspn(text, "\n"), text);

	static const half halves[] = {
		{"none", NULL, GRADCOMP_CUDA, 0},    {"topk:density=0.1", "ring", GRADCOMP_CUDA, 0},
		{"block", "ring", GRADCOMP_CUDA, 0}, {"none", NULL, GRADCOMP_CUDA, 1},
		{"auto", NULL, GRADCOMP_CUDA, 0},    {"none", "ring", GRADCOMP_HOST, 0},
		{"none", "ring", GRADCOMP_HOST, 1},  {"auto", "ring", GRADCOMP_HOST, 0}};
	for (size_t i = 0; i < sizeof halves / sizeof halves[0]; i++)
		try_half(&halves[i], settings);

	try_starving("none", "nccl", settings);
	try_starving("topk:density=0.1", "nccl", settings);
	try_starving("block", "nccl", settings);
	try_starving("topk:density=0.1", "ring", settings);
	try_starving("topk:density=0.1", "hier:ranks_per_node=1", settings);

	/* 45 kB of 16-bit floats take 90 ms. */
	setenv("FAKE_NCCL_RATE", "5e5", 1);
	try_costly("topk:density=1", "nccl", 1);
	try_costly("topk:density=1", "hier:ranks_per_node=1", 1);
	try_costly("topk:density=0.01", "nccl", 0);
	try_costly("cast:type=bf16", "nccl", 0);
	unsetenv("FAKE_NCCL_RATE");
	return done_testing();
}
