/* What goes wrong with GPUs: a rank that dies in a collective of NCCL's, or never comes
 * to it, or gives up elsewhere; no device, no memory on it, damaged payloads. Every
 * other rank gets an error that says so, soon; nothing hangs. */
#include "tests/fake/gpu_model.h"

enum { TOOK };
enum { DIES_AFTER_MS = 300 };

/* The fake's; on a real device there is none, and what needs a fake is passed over. */
__attribute__((weak)) extern long fake_cuda_allocations(void);
__attribute__((weak)) extern long fake_cuda_launches(void);
__attribute__((weak)) extern void fake_cuda_fail_launch(long k);

typedef struct fault {
	const char *what;
	const char *compressor, *collective;
	const char *name, *value; /* of the environment */
	enum { DIES, DIES_EARLY, STAYS_AWAY, GIVES_UP, NOTHING } does; /* rank 1, in its third step */
	int status;                                                 /* 0: it works */
	const char *says[3];                                        /* the error of all others */
	double within;                                              /* seconds */
} fault;

static void leave(outcome *out, gradcomp_status st, const gradcomp_error *err)
{
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err->text : "");
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
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, f->compressor,
	                                    f->collective, 5000, &err);
	for (int s = 0; !st && s < 4; s++) {
		since = process_clock();
		if (s == 2 && rank == 1 && f->does == DIES) {
			usleep(1000 * DIES_AFTER_MS); /* the others wait for it by now */
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
		st = gpu_step(&m, rank, s, 0, &err);
	}
	out->number[TOOK] = process_clock() - since;
	if (m.red)
		gpu_model_close(&m);
	leave(out, st, &err);
}

enum { ALLOCATED, MISALIGNED };

/* A real step allocates nothing once all buckets have been through one, and gives NCCL nothing
 * that stands off its boundaries. */
static void steady(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const char *const *spec = arg;
	gradcomp_error err = {0};
	gpu_model m;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, spec[0], spec[1],
	                                    5000, &err);
	long before = 0;
	(void)P;
	for (int s = 0; !st && s < 6; s++) {
		st = gpu_step(&m, rank, s, 0, &err);
		before = s == 2 ? fake_cuda_allocations() : before;
	}
	out->number[ALLOCATED] = (double)(fake_cuda_allocations() - before);
	out->number[MISALIGNED] = (double)fake_nccl("fake_nccl_misaligned");
	if (m.red)
		gpu_model_close(&m);
	leave(out, st, &err);
}

typedef struct failing {
	const char *compressor, *collective;
	long launch; /* rank 1's in its second step, from 1; 0: none fails */
} failing;

/* A launch that fails ends the rank's step; another that has all it needs by then learns
 * of it in the next one. */
static void launches(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const failing *f = arg;
	gradcomp_error err = {0};
	gpu_model m;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, f->compressor,
	                                    f->collective, 1 << 20, &err);
	long before = 0;
	(void)P;
	for (int s = 0; !st && s < (f->launch ? 3 : 2); s++) {
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

/* Each launch of a step fails once. */
static void try_launches(const char *compressor, const char *collective, const char *const *settings)
{
	failing f = {.compressor = compressor, .collective = collective};
	const outcome *o = run_processes(2, 30, settings, launches, &f);
	long count = (long)o[1].number[0];
	int wrong = o[0].status || o[1].status || o[0].failed || o[1].failed;
	for (f.launch = 1; !wrong && f.launch <= count; f.launch++) {
		o = run_processes(2, 30, settings, launches, &f);
		wrong = o[1].status != GRADCOMP_ERR_IO || !o[0].status || o[0].failed || o[1].failed ||
		        !strstr(o[1].text, "a launch failed: ") || !strstr(o[1].text, ": invalid configuration argument");
		if (wrong)
			printf("# launch %ld: status %d and %d, \"%s\" and \"%s\"\n", f.launch, o[0].status, o[1].status,
			       o[0].text, o[1].text);
	}
	ok(!wrong && count > 1, "%s over %s: each of %ld launches of a step that fails ends it: \"%s\"", compressor,
	   collective, count, o[1].text);
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

static void try(const fault *f, const char *const *settings)
{
	int wrong = 0;
	double took = 0;
	if (f->name)
		setenv(f->name, f->value, 1);
	const outcome *o = run_processes(3, 30, settings, body, (void *)(uintptr_t)f);
	if (f->name)
		unsetenv(f->name);
	for (int r = 0; r < 3; r++) {
		if (r == 1 && (f->does == DIES || f->does == DIES_EARLY)) {
			wrong |= o[r].failed != -SIGKILL;
			continue;
		}
		if (r == 1 && f->does != NOTHING)
			continue;
		wrong |= o[r].status != f->status || (!f->status && o[r].failed);
		for (int k = 0; k < 3 && f->says[k]; k++)
			wrong |= !strstr(o[r].text, f->says[k]);
		took = fmax(took, o[r].number[TOOK]);
	}
	ok(!wrong && took <= f->within, "%s: \"%s\" after %.1f s", f->what, o[2].text, took);
	if (!wrong && f->does == DIES && !fake_cuda_allocations)
		printf("figure: until the others know, when %s = %.0f ms\n", f->what, 1e3 * took - DIES_AFTER_MS);
	for (int r = 0; wrong && r < 3; r++)
		printf("# rank %d: failed %d, status %d \"%s\"\n", r, o[r].failed, o[r].status, o[r].text);
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", NULL};
	static const fault faults[] = {
		{.what = "a rank is killed in a step over nccl", .compressor = "none", .collective = "nccl", .does = DIES,
		 .status = GRADCOMP_ERR_PEER, .says = {"rank 1", "was waiting for NCCL to reduce"}, .within = 6},
		{.what = "and NCCL does not notice", .compressor = "none", .collective = "nccl", .name = "FAKE_NCCL_SILENT",
		 .value = "1", .does = DIES, .status = GRADCOMP_ERR_PEER, .says = {"rank 1", "was waiting for NCCL to reduce"},
		 .within = 6},
		{.what = "a rank is killed while payloads are gathered", .compressor = "topk:density=0.1", .collective = "nccl",
		 .does = DIES, .status = GRADCOMP_ERR_PEER, .says = {"rank 1", "was waiting for NCCL to gather"}, .within = 6},
		{.what = "a rank is killed while codes are exchanged", .compressor = "block", .collective = "nccl", .does = DIES,
		 .status = GRADCOMP_ERR_PEER, .says = {"rank 1", "was waiting to receive"}, .within = 6},
		{.what = "a rank is killed in a step through pinned memory", .compressor = "topk:density=0.1",
		 .collective = "ring", .does = DIES, .status = GRADCOMP_ERR_PEER, .says = {"rank 1", "was waiting to"}, .within = 6},
		{.what = "a rank is killed before it has a reducer", .compressor = "none", .collective = "nccl",
		 .does = DIES_EARLY, .status = GRADCOMP_ERR_PEER, .says = {"rank 1"}, .within = 6},
		{.what = "a rank does not come", .compressor = "none", .collective = "nccl:timeout=1", .does = STAYS_AWAY,
		 .status = GRADCOMP_ERR_TIMEOUT, .says = {"timeout=", "was waiting for NCCL to reduce"}, .within = 4},
		{.what = "a rank gives up its reducer", .compressor = "none", .collective = "nccl", .does = GIVES_UP,
		 .status = GRADCOMP_ERR_STATE, .says = {"rank 1 gave up its reducer"}, .within = 4},
		{.what = "payloads are damaged on their way", .compressor = "topk:density=0.1", .collective = "nccl",
		 .name = "FAKE_NCCL_DAMAGE", .value = "1", .does = NOTHING, .status = GRADCOMP_ERR_MISMATCH, .says = {"damaged"},
		 .within = 10},
		{.what = "the device has too little memory", .compressor = "topk:density=0.1", .collective = "nccl",
		 .name = "FAKE_CUDA_BYTES", .value = "150000", .does = NOTHING, .status = GRADCOMP_ERR_NOMEM,
		 .says = {"CUDA memory"}, .within = 10},
	};
	test_seed_value = 3;
	for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
		if (fake_cuda_allocations || !faults[i].name)
			try(&faults[i], settings);
	if (!fake_cuda_allocations)
		return done_testing();

	static const char *const pairs[][2] = {{"topk:density=0.1", "nccl"}, {"topk:density=0.1", "ring"}, {"powersgd", "nccl"},
	                                       {"block", "nccl"}, {"none", "nccl"}, {"signsgd", "ring"},
	                                       {"qsgd:levels=7", "nccl"}, {"onebit", "nccl"}, {"gtopk:density=0.1", "tree"}};
	for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++) {
		const outcome *o = run_processes(2, 30, settings, steady, (void *)(uintptr_t)pairs[i]);
		ok(!o[0].failed && !o[0].status && o[0].number[ALLOCATED] == 0 && o[1].number[ALLOCATED] == 0,
		   "%s over %s: no memory is asked for after the third step %s", pairs[i][0], pairs[i][1], o[0].text);
		if (!strcmp(pairs[i][1], "nccl"))
			ok(o[0].number[MISALIGNED] == 0 && o[1].number[MISALIGNED] == 0,
			   "%s over nccl: all buffers stand on boundaries of 16 bytes (%g and %g do not)", pairs[i][0],
			   o[0].number[MISALIGNED], o[1].number[MISALIGNED]);
	}

	try_launches("topk:density=0.1", "nccl", settings);
	try_launches("powersgd", "nccl", settings);
	try_launches("block", "nccl", settings);
	try_launches("topk:density=0.1", "ring", settings);

	setenv("FAKE_CUDA_DEVICES", "0", 1);
	const outcome *o = run_processes(3, 30, settings, on_host, NULL);
	ok(!o[0].status && !o[1].status && !o[0].failed && !o[1].failed && !o[2].failed,
	   "gradients of the host go over nccl without a device %s", o[0].text);
	return done_testing();
}
