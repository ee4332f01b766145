/* gradcomp.verify of gradients in GPU memory: compressors work there as without it, what they make passes, a NaN
 * too, and what a device makes differently, or loses, ends the job. */
#define gpu_step gpu_step_inside /* the model's has the same name */
#include "step/gpu/gpu.h"
#include "reducer/reducer.h"
#undef gpu_step

#include "gradcomp/operators.h"
#include "tests/fake/gpu_model.h"

enum { STEPS = 5, POISONED = 2, SPOILT = 3 };

typedef struct run {
	const char *compressor, *collective;
	void (*spoils)(void *queue, const gradcomp_segment *t,
	               const gradcomp_operators *ops); /* on rank 1, from a step on */
	gradcomp_status status;
	const char *says, *also;
} run;

static const gradcomp_operators *real;
static const run *now;
static int spoilt;

static gradcomp_status store(void *queue, const gradcomp_segment *t, size_t count, const int *poison, double *squares,
                             void *scratch)
{
	gradcomp_status st = real->store_tensors(queue, t, count, poison, squares, scratch);
	for (size_t i = 0; spoilt && i < count; i++)
		if (t[i].n > 1)
			now->spoils(queue, &t[i], real);
	return st;
}

static void differs(void *queue, const gradcomp_segment *t, const gradcomp_operators *ops)
{
	ops->fill(queue, t->grad ? t->grad : t->x, 7, 1);
}

static void loses(void *queue, const gradcomp_segment *t, const gradcomp_operators *ops)
{
	ops->fill(queue, (float *)(uintptr_t)t->error, 0, t->n);
}

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gradcomp_operators table;
	gpu_model m;
	now = arg;
	(void)P;
	gradcomp_status st =
		gpu_model_open(&m, w, GRADCOMP_CUDA, GRADCOMP_F32, now->compressor, now->collective, 5000, &err);
	if (!st) {
		gpu *g = gpu_of(&((reducer *)m.red)->eng);
		out->failed = g->mode != GPU_ON_DEVICE;
		table = *(real = g->ops);
		table.store_tensors = store;
		g->ops = &table;
	}
	for (int s = 0; !st && s < STEPS; s++) {
		spoilt = now->spoils && rank == 1 && s >= SPOILT;
		st = gpu_step(&m, rank, s, s == POISONED && rank == 0, &err);
	}
	if (m.red)
		gpu_model_close(&m);
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
}

int main(void)
{
	const char *const settings[] = {"transport.timeout=5", "gradcomp.log=error", "gradcomp.verify=yes", NULL};
	static const run runs[] = {
		{.compressor = "none", .collective = "nccl"},
		{.compressor = "topk:density=0.1", .collective = "nccl"},
		{.compressor = "topk:density=0.1", .collective = "ring"},
		{.compressor = "powersgd:rank=2,start_step=0", .collective = "nccl"},
		{.compressor = "block:bits=8", .collective = "nccl"},
		{.compressor = "cast:type=bf16", .collective = "nccl"},
		{.compressor = "topk:density=0.1",
	         .collective = "nccl",
	         .spoils = differs,
	         .status = GRADCOMP_ERR_MISMATCH,
	         .says = "are not the same on all ranks",
	         .also = "rank 1 on"},
		{.compressor = "none",
	         .collective = "nccl",
	         .spoils = differs,
	         .status = GRADCOMP_ERR_MISMATCH,
	         .says = "are not the same on all ranks",
	         .also = "rank 1 on"},
		{.compressor = "topk:density=0.1",
	         .collective = "ring",
	         .spoils = loses,
	         .status = GRADCOMP_ERR_INTERNAL,
	         .says = "loses a part of the gradient",
	         .also = "topk"},
		{.compressor = "topk:density=0.1",
	         .collective = "nccl",
	         .spoils = loses,
	         .status = GRADCOMP_ERR_INTERNAL,
	         .says = "loses a part of the gradient",
	         .also = "topk"},
	};
	struct timespec t;
	clock_gettime(CLOCK_REALTIME, &t);
	test_seed_value = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 0) : (uint64_t)t.tv_nsec;
	printf("# seed %llu\n", (unsigned long long)test_seed_value);
	for (size_t k = 0; k < sizeof runs / sizeof runs[0]; k++) {
		const run *r = &runs[k];
		const outcome *o = run_processes(3, 60, settings, body, (void *)(uintptr_t)r);
		int right = 1;
		for (int p = 0; p < 3; p++)
			right &= !o[p].failed && o[p].status == r->status &&
			         (!r->says || (strstr(o[p].text, r->says) && strstr(o[p].text, r->also)));
		ok(right, "%s over %s, on the device%s%.200s", r->compressor, r->collective,
		   r->spoils ? ": " : " is as it should be", o[0].text);
		for (int p = 0; !right && p < 3; p++)
			printf("# rank %d: failed %d, status %d \"%s\"\n", p, o[p].failed, o[p].status, o[p].text);
	}
	return done_testing();
}
