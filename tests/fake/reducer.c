/* The reducer with gradients in GPU memory, against the same in host memory: results, error memory's share, NaN,
 * resume, types; over a collective that takes device memory and one that does not; with compressors that work there
 * and others. In CI a part of these at a time, on a GPU and in check-long all. */
#include "tests/fake/gpu_model.h"

#include "reducer/bucketing/rebucket.h"
#include "reducer/reducer.h"

/* On a real device there is none. */
__attribute__((weak)) extern long fake_cuda_allocations(void);

struct run {
	const char *compressor, *collective;
	const char *on_host; /* the host's collective; NULL: the default */
	uint64_t bucket_bytes;
	gradcomp_dtype dtype;
	double within, share_within;
	/* that it works on shards, in two levels, on the device: 1 it does, -1 it does not; 0: not looked at */
	int levels;
};

/* A rank leaves these. */
enum { WORST, SHARE };

static int told(int rank, const gradcomp_error *err, gradcomp_status st)
{
	if (st)
		printf("# rank %d: %s\n", rank, err->text);
	return st != 0;
}

static double share_of(const gpu_model *m)
{
	gradcomp_reducer_stats s = {.struct_size = sizeof s};
	gradcomp_reducer_get_stats(m->red, &s);
	return s.error_mean;
}

/* Other buckets, the same on both and on all ranks, after step s. */
static gradcomp_status move(gpu_model *host, gpu_model *dev, int s, gradcomp_error *err)
{
	uint32_t end[N_TENSORS], position[N_TENSORS];
	step_plan p = {.end = end, .position = position, .lag = (uint32_t)s % 2};
	for (uint32_t i = 0; i < N_TENSORS; i++)
		if (i + 1 == N_TENSORS || mixed(test_seed_value + 31 * (uint64_t)s) >> i & 1)
			end[p.nbuckets++] = i + 1;
	for (uint32_t b = 0; b < p.nbuckets; b++)
		position[b] = p.nbuckets - 1 - b;
	gradcomp_status st = reducer_rebucket(reducer_of(host->red), &p, err);
	if (st)
		return st;
	/* It is the exchange thread's to call, but for when that has nothing to do. */
	pthread_mutex_lock(&reducer_of(dev->red)->lock);
	run_step_replan_settle(reducer_of(dev->red));
	pthread_mutex_unlock(&reducer_of(dev->red)->lock);
	return reducer_rebucket(reducer_of(dev->red), &p, err);
}

/* Both hold the same, and after it is given back nothing. */
static gradcomp_status give(gpu_model *a, gpu_model *b, int *differ, gradcomp_error *err)
{
	const uint32_t most = 4; /* a matrix, of which every compressor holds back */
	uint64_t n = tensor_dims[most][0] * tensor_dims[most][1];
	float *to[3] = {calloc(n, sizeof(float)), calloc(n, sizeof(float)), calloc(n, sizeof(float))};
	double held = 0;
	gradcomp_status st = reducer_residual_export(reducer_of(a->red), most, to[0], err);
	if (!st)
		st = reducer_residual_export(reducer_of(b->red), most, to[1], err);
	if (!st)
		st = reducer_residual_export(reducer_of(a->red), most, to[2], err);
	for (uint64_t i = 0; i < n; i++) {
		held += fabs((double)to[0][i]);
		*differ |= to[0][i] != to[1][i] || to[2][i] != 0;
	}
	/* But those that are unbiased. */
	int holds = reducer_of(a->red)->eng.arrays.memory &&
	            !(reducer_of(a->red)->eng.compressor->traits & GRADCOMP_TRAIT_UNBIASED);
	/* With two levels a rank holds what is in its shards, which may be nothing of this one. */
	*differ |= (held > 0) != holds && !(reducer_of(a->red)->eng.coll_ctx.collective->serves & GRADCOMP_CAN_SHARD);
	for (int k = 0; k < 3; k++)
		free(to[k]);
	return st;
}

/* Sends what all ranks share from the device into all three; `again` gets the device's buckets first. */
static gradcomp_status share(gpu_model *dev, gpu_model *again, gpu_model *host, gradcomp_error *err)
{
	uint64_t bytes = 0, own = 0;
	void *state;
	gradcomp_status st = gradcomp_reducer_save_shared(dev->red, NULL, 0, &bytes, err);
	if (!st)
		st = gradcomp_reducer_save(dev->red, NULL, 0, &own, err);
	state = malloc(bytes + own + 1);
	if (!st)
		st = gradcomp_reducer_save(dev->red, state, own, &own, err);
	if (!st)
		st = gradcomp_reducer_load(again->red, state, own, err);
	if (!st)
		st = gradcomp_reducer_save_shared(dev->red, state, bytes, &bytes, err);
	if (!st)
		st = gradcomp_reducer_load(dev->red, state, bytes, err);
	if (!st)
		st = gradcomp_reducer_load(again->red, state, bytes, err);
	if (!st)
		st = gradcomp_reducer_load(host->red, state, bytes, err);
	free(state);
	return st;
}

/* Steps on both, a NaN in the third, buckets that move; then the device's state goes into
 * another reducer and both go on. */
static void alike(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const struct run *run = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gpu_model host, dev, again;
	uint64_t bytes = 0;
	out->failed = 1;
	/* The host's collective adds in another order than the device's may. */
	if (told(rank, &err,
	         gpu_model_open(&host, w, GRADCOMP_HOST, run->dtype, run->compressor, run->on_host, run->bucket_bytes,
	                        &err)))
		return;
	if (told(rank, &err,
	         gpu_model_open(&dev, w, GRADCOMP_CUDA, run->dtype, run->compressor, run->collective, run->bucket_bytes,
	                        &err)))
		goto no_device;
	if (told(rank, &err,
	         gpu_model_open(&again, w, GRADCOMP_CUDA, run->dtype, run->compressor, run->collective,
	                        run->bucket_bytes, &err)))
		goto no_other;
	const reducer *r = reducer_of(dev.red);
	int levels = r->eng.list.shards && r->eng.list.shards->arrays.arena ? 1 : -1;
	out->failed = run->levels && levels != run->levels;
	if (out->failed)
		printf("# rank %d: %s levels on the device\n", rank, levels < 0 ? "no" : "two");
	for (int s = 0; !out->failed && s < 5; s++) {
		int poison = s == 2 && rank == P - 1;
		gradcomp_status st = gpu_step(&host, rank, s, poison, &err);
		if (!st)
			st = gpu_step(&dev, rank, s, poison, &err);
		out->failed |= told(rank, &err, st);
		out->number[WORST] = fmax(out->number[WORST], gpu_distance(&host, &dev));
		out->mark = mixed(out->mark ^ gpu_fingerprint(&dev));
		if (s % 2 == 0 && !out->failed)
			out->failed |= told(rank, &err, move(&host, &dev, s, &err));
		if (s == 3 && !out->failed) {
			gradcomp_reducer_save(dev.red, NULL, 0, &bytes, &err);
			void *state = malloc(bytes);
			st = gradcomp_reducer_save(dev.red, state, bytes, &bytes, &err);
			if (!st)
				st = gradcomp_reducer_load(again.red, state, bytes, &err);
			out->failed |= told(rank, &err, st);
			free(state);
		}
	}
	if (!out->failed) {
		out->failed |= told(rank, &err, gpu_step(&again, rank, 4, 0, &err));
		out->failed |= gpu_fingerprint(&again) != gpu_fingerprint(&dev);
		out->failed |= told(rank, &err, share(&dev, &again, &host, &err));
		out->failed |= told(rank, &err, gpu_step(&host, rank, 5, 0, &err));
		out->failed |= told(rank, &err, gpu_step(&dev, rank, 5, 0, &err));
		out->failed |= told(rank, &err, gpu_step(&again, rank, 5, 0, &err));
		out->failed |= gpu_fingerprint(&again) != gpu_fingerprint(&dev);
		out->number[WORST] = fmax(out->number[WORST], gpu_distance(&host, &dev));
		out->failed |= told(rank, &err, give(&again, &dev, &out->failed, &err));
		out->failed |= dev.done != 6 * N_TENSORS;
		out->number[SHARE] = fabs(share_of(&dev) - share_of(&host));
	}
	gpu_model_close(&again);
no_other:
	gpu_model_close(&dev);
no_device:
	gpu_model_close(&host);
}

static void check(int P, const char *const *settings, struct run run)
{
	int failed = 0, differ = 0;
	double worst = 0, share = 0;
	const outcome *o = run_processes(P, 60, settings, alike, &run);
	for (int r = 0; r < P; r++) {
		failed |= o[r].failed;
		differ |= o[r].mark != o[0].mark;
		worst = fmax(worst, o[r].number[WORST]);
		share = fmax(share, o[r].number[SHARE]);
	}
	ok(!failed && !differ && worst <= run.within && share <= run.share_within,
	   "%s over %s, %d ranks, buckets of %llu bytes, %s: as on the host (off by %.2g, share held back by %.2g)",
	   run.compressor, run.collective, P, (unsigned long long)run.bucket_bytes,
	   run.dtype == GRADCOMP_F32 ? "float" : "bfloat16", worst, share);
	if (failed || differ)
		printf("# %s%s\n", failed ? "a call failed, or resuming differs, or a rank was killed; " : "",
		       differ ? "ranks differ" : "");
}

/* The sum of all ranks' overflows in the second step, where it is coded: that bucket is NaN, the memory of every rank
 * is finite, and the steps after that are as on the host. */
static void overflows(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	const struct run *run = arg;
	gradcomp_group *w = gradcomp_job_world(job);
	gradcomp_error err = {0};
	gpu_model host, dev;
	float *held = calloc(tensor_numel(4), sizeof *held);
	(void)P;
	out->failed = 1;
	if (told(rank, &err,
	         gpu_model_open(&host, w, GRADCOMP_HOST, run->dtype, run->compressor, run->on_host, run->bucket_bytes,
	                        &err)))
		return free(held);
	out->failed = told(rank, &err,
	                   gpu_model_open(&dev, w, GRADCOMP_CUDA, run->dtype, run->compressor, run->collective,
	                                  run->bucket_bytes, &err));
	for (int s = 0; !out->failed && s < 4; s++) {
		int big = s == 1 ? GPU_BIG : 0;
		out->failed |= told(rank, &err, gpu_step(&host, rank, s, big, &err));
		out->failed |= told(rank, &err, gpu_step(&dev, rank, s, big, &err));
		for (uint64_t i = 0; i < tensor_numel(4); i++)
			out->failed |= (big != 0) != !!isnan(gpu_value(&dev, 4, i));
		out->number[WORST] = fmax(out->number[WORST], gpu_distance(&host, &dev));
		out->mark = mixed(out->mark ^ gpu_fingerprint(&dev));
		/* Nothing is held of what was lost, and no more than a step's share later. */
		if (!out->failed && reducer_of(dev.red)->eng.arrays.memory && s == 1) {
			out->failed |= told(rank, &err, reducer_residual_export(reducer_of(dev.red), 4, held, &err));
			for (uint64_t i = 0; i < tensor_numel(4); i++)
				out->failed |= !(fabsf(held[i]) < 10);
		}
	}
	free(held);
	if (dev.red)
		gpu_model_close(&dev);
	gpu_model_close(&host);
}

static void check_overflow(int P, const char *const *settings, struct run run)
{
	const outcome *o = run_processes(P, 60, settings, overflows, &run);
	double worst = 0;
	int failed = 0, differ = 0;
	for (int r = 0; r < P; r++) {
		failed |= o[r].failed;
		differ |= o[r].mark != o[0].mark;
		worst = fmax(worst, o[r].number[WORST]);
	}
	ok(!failed && !differ && worst <= run.within,
	   "%s over %s, %d ranks, %s: a sum that overflows is NaN, then as on the host (off by %.2g)", run.compressor,
	   run.collective, P, run.dtype == GRADCOMP_F32 ? "float" : "bfloat16", worst);
	if (failed || differ)
		printf("# %s%s\n", failed ? "a call failed, a result or a memory is wrong; " : "",
		       differ ? "ranks differ" : "");
}

enum { ADAPTED = 600, ASKED = 20 }; /* at most: on a loaded machine what is measured does not count at once */

/* lags:adaptive=yes sends by turns `density` and a quarter of it until it is told what was measured. */
static void adapts(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	gradcomp_error err = {0};
	gpu_model m;
	double sent[ADAPTED + 1] = {0};
	int64_t settled = 0;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32,
	                                    "lags:adaptive=yes,density=0.4,measure_steps=1000", arg, 0, &err);
	(void)P;
	out->failed = told(rank, &err, st);
	for (int s = 0; !st && s < ADAPTED && !settled; s++) {
		gradcomp_reducer_stats stats = {.struct_size = sizeof stats};
		st = gpu_step(&m, rank, s, 0, &err);
		out->failed |= told(rank, &err, st);
		/* The host learns of a step when its last event has come. */
		for (int ms = 0; !st && ms < 5000 && sent[s + 1] <= sent[s]; ms++) {
			gradcomp_reducer_get_stats(m.red, &stats);
			sent[s + 1] = (double)stats.wire_bytes;
			if (sent[s + 1] <= sent[s])
				usleep(1000);
		}
		out->mark = mixed(out->mark ^ gpu_fingerprint(&m));
		/* From step to step it is much the same by then, on all ranks. */
		double now = sent[s + 1] - sent[s], before = s ? sent[s] - sent[s - 1] : 0;
		settled = s > 4 && fabs(now - before) < 0.3 * before && before < 2 * now;
		if (!st && s % ASKED == ASKED - 1)
			st = gradcomp_allreduce(gradcomp_job_world(job), &settled, 1, GRADCOMP_I64, GRADCOMP_MIN, &err);
		else
			settled = 0;
	}
	out->failed |= told(rank, &err, st);
	/* In the first steps it is not. */
	out->failed |= fabs((sent[2] - sent[1]) - (sent[1] - sent[0])) < 1000;
	out->number[WORST] = (double)settled;
	if (m.red)
		gpu_model_close(&m);
}

static void check_adapts(const char *collective)
{
	static const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", "schedule.profile_steps=4",
	                                       NULL};
	const outcome *o = run_processes(3, 60, settings, adapts, (void *)(uintptr_t)collective);
	int wrong = 0;
	for (int r = 0; r < 3; r++)
		wrong |= o[r].failed || o[r].mark != o[0].mark || !(o[r].number[WORST] > 0);
	ok(!wrong, "lags:adaptive=yes over %s: densities follow what was measured on the device, alike on all ranks",
	   collective);
}

int main(int argc, char **argv)
{
	const char *const settings[] = {"transport.timeout=20", "gradcomp.log=error", NULL};
	/* Both work in host memory then. */
	const char *const verified[] = {"transport.timeout=20", "gradcomp.log=error", "gradcomp.verify=yes", NULL};
	static const struct {
		const char *spec;
		double within;
	} all[] = {
		{"none", 1e-6},
		{"topk:density=0.1", 1e-6},
		{"dgc:density=0.1", 1e-6},
		{"mstopk:density=0.1", 1e-6},
		{"threshold:t=0.3", 1e-6},
		{"lags:density=0.1", 1e-6},
		{"onebit", 1e-5},
		{"qsgd:levels=7", 1e-3},
		{"powersgd:rank=4", 1e-4},
		{"acpsgd:rank=2", 1e-4},
		{"lqsgd:rank=2", 0.2},
		{"cast:type=bf16", 1e-2},
		{"cast:type=fp16,saturate=yes", 1e-2},
		{"cast:type=bf16,sum=wire", 1e-2},
		{"signsgd", 1e-4},
		{"terngrad", 1e-6},
		{"terngrad:clip=0", 1e-6},
		{"randomk:density=0.1", 1e-6},
		{"dgc:density=0.1,clip=1", 1e-5},
		{"dgc:density=0.1,clip=1,nesterov=yes", 1e-5},
		{"topk:density=0.05,indices=delta,layerwise=yes", 1e-6},
		{"topk:density=0.2,indices=bitmap,values=fp16", 1e-6},
		{"mstopk:density=0.1,indices=auto,values=block8", 1e-6},
		{"dgc:density=0.1,indices=auto,values=bf16", 1e-6},
		{"lags:density=1,indices=auto,values=block4", 1e-6},
		{"blocktopk:density=0.1,block=100", 1e-6},
		{"blocktopk:density=0.2,rows=yes", 1e-6},
		{"lqsgd:rank=2,levels=log", 0.2},
		{"dion:rank=2", 1e-3},
		{"demo:chunk=16,k=8", 1e-6},
		{"dion:rank=4,orthogonal=qr", 1e-3},
		{"demo:chunk=64,k=32,sign=yes", 1e-6},
		{"demo:chunk=16,k=8,form=published", 1e-6},
		{"dion:rank=3,orthogonal=no,start_step=1", 1e-3},
		/* Merged in the tree's order, so to the bit; codes are made where the collective has the floats. */
		{"block:bits=8", 2e-2},
		{"fp8", 0.1},
		{"gtopk:density=0.1", 0},
		{"fp8:type=e5m2,scales=e8m0,block=32", 0.2},
		{"gtopk:density=0.2,indices=delta", 0},
		{"natural", 2.5},
		{"gtopk:density=0.3,indices=bitmap", 0},
	};
	const char *only = argc > 1 ? argv[1] : NULL;
	gradcomp_error err = {0};
	int with_nccl = !gradcomp_spec_check("none", "nccl", &err);
	if (!with_nccl)
		printf("# %s\n", err.text);
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	test_seed_value = getenv("TEST_SEED") ? strtoull(getenv("TEST_SEED"), NULL, 0) : mixed((uint64_t)now.tv_nsec);
	printf("# seed %llu\n", (unsigned long long)test_seed_value);
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		if (only && strncmp(all[i].spec, only, strlen(only)))
			continue;
		struct run run = {.compressor = all[i].spec,
		                  .within = all[i].within,
		                  .bucket_bytes = 5000,
		                  /* Codes are made elsewhere than in a ring. */
		                  .share_within = !strncmp(all[i].spec, "block", 5) ? 1e-2
		                                  : !strncmp(all[i].spec, "fp8", 3) ? 0.1
		                                                                    : 1e-4};
		int merges = !strncmp(all[i].spec, "gtopk", 5);
		run.collective = merges                           ? "tree"
		                 : !strcmp(all[i].spec, "onebit") ? "direct"
		                 : i % 5 == 1                     ? "hier"
		                 : i % 5 == 3                     ? "direct"
		                                                  : "ring";
		/* Over it codes are summed; the default gathers. */
		run.on_host = strcmp(run.collective, "direct") ? NULL : run.collective;
		/* Each every day, in one of three ways. */
		if (tap_in_part(i, 3) || !with_nccl)
			check(3, settings, run);
		run.on_host = merges ? "tree" : NULL;
		if (!with_nccl)
			continue;
		run.collective = "nccl";
		if (tap_in_part(i + 1, 3))
			check(1 + (int)i % 4, settings, run);
		run.bucket_bytes = 1 << 20;
		if (tap_in_part(i + 2, 3))
			check(3, settings, run);
	}
	/* Exchanges that take longer than what is computed, in more buckets than there are workspaces. */
	static const struct {
		const char *spec;
		double within;
	} late[] = {{"none", 1e-6},    {"topk:density=0.1", 1e-6}, {"dgc:density=0.1", 1e-6}, {"powersgd:rank=4", 1e-4},
	            {"signsgd", 1e-4}, {"block:bits=8", 2e-2}};
	if (fake_cuda_allocations)
		setenv("FAKE_NCCL_RATE", "1e6", 1);
	for (size_t i = 0; with_nccl && i < sizeof late / sizeof *late; i++)
		if ((!only || !strcmp(only, "late")) && tap_in_part(i, 2))
			check(2 + (int)i % 2, settings,
			      (struct run){.compressor = late[i].spec,
			                   .collective = "nccl",
			                   .bucket_bytes = 2000,
			                   .within = late[i].within,
			                   .share_within = i == 5 ? 1e-2 : 1e-4});
	unsetenv("FAKE_NCCL_RATE");
	/* Two levels: two ranks a node, whose sums have one order; several shards on a rank; nodes of three; none. */
	static const struct {
		const char *spec, *collective;
		int P, levels;
		uint64_t bucket_bytes;
		double within;
	} levels[] = {
		{"topk:density=0.1", "hier:ranks_per_node=2", 4, 1, 5000, 0},
		{"topk:density=0.1,indices=delta", "hier:ranks_per_node=2", 3, 1, 1 << 20, 0},
		{"dgc:density=0.1", "hier:ranks_per_node=3", 4, 1, 5000, 1e-6},
		{"lags:density=0.1", "hier:ranks_per_node=2", 4, 1, 5000, 0},
		{"mstopk:density=0.1", "hier:ranks_per_node=4", 5, 1, 1 << 20, 1e-6},
		{"onebit", "hier:ranks_per_node=2", 4, 1, 5000, 1e-5},
		{"signsgd", "hier:ranks_per_node=2", 4, 1, 1 << 20, 1e-5},
		{"qsgd:levels=7", "hier:ranks_per_node=3", 6, 1, 5000, 1e-3},
		{"randomk:density=0.1", "hier:ranks_per_node=2", 4, 1, 1 << 20, 0},
		{"blocktopk:density=0.1,block=100", "hier:ranks_per_node=2", 4, 1, 5000, 1e-6},
		{"demo:chunk=16,k=8", "hier:ranks_per_node=2", 4, 1, 5000, 1e-6},
		{"demo:chunk=16,k=8,sign=yes,form=published", "hier:ranks_per_node=2", 4, 1, 5000, 1e-6},
		{"dion:rank=2", "hier:ranks_per_node=2", 4, -1, 5000, 1e-3},
		{"topk:density=0.1", "hier:ranks_per_node=4", 4, -1, 5000, 1e-6},
		{"none", "hier:ranks_per_node=2", 4, -1, 5000, 0},
		{"none", "hier:ranks_per_node=3", 4, -1, 1 << 20, 1e-6},
		{"powersgd:rank=4", "hier:ranks_per_node=2", 3, -1, 5000, 1e-4},
		{"block:bits=8", "hier:ranks_per_node=2", 4, -1, 1 << 20, 2e-2},
	};
	for (size_t i = 0; with_nccl && i < sizeof levels / sizeof levels[0]; i++) {
		if (only && strcmp(only, "levels"))
			break;
		if (!tap_in_part(i, 2))
			continue;
		check(levels[i].P, settings,
		      (struct run){.compressor = levels[i].spec,
		                   .collective = levels[i].collective,
		                   .on_host = levels[i].collective,
		                   .bucket_bytes = levels[i].bucket_bytes,
		                   .levels = levels[i].levels,
		                   .within = levels[i].within,
		                   .share_within = !strncmp(levels[i].spec, "block", 5) ? 1e-2 : 1e-4});
	}
	static const struct {
		const char *spec;
		double within;
	} coded[] = {{"block:bits=8", 5e-2},
	             {"fp8", 0.3},
	             {"fp8:type=e5m2,scales=e8m0,block=32", 0.5},
	             {"natural", 2.5},
	             {"block:bits=4,block=2048,rounding=stochastic", 0.7}};
	static const char *const over[] = {"nccl", "ring", "hier:ranks_per_node=2"};
	for (size_t i = 0; (!only || !strcmp(only, "overflow")) && i < 3 * (sizeof coded / sizeof *coded); i++)
		if ((with_nccl || i % 3 == 1) && tap_in_part(i / 3 + i, 3))
			check_overflow(2 + (int)i % 3, settings,
			               (struct run){.compressor = coded[i / 3].spec,
			                            .collective = over[(i + i / 3) % 3],
			                            .bucket_bytes = i % 2 ? 5000 : 1 << 20,
			                            .within = coded[i / 3].within});
	if (fake_cuda_allocations && (!only || !strcmp(only, "levels"))) {
		/* Without NCCL shards are in host memory, and so is all work on them. */
		setenv("FAKE_NCCL_ABSENT", "1", 1);
		check(4, settings,
		      (struct run){.compressor = "topk:density=0.1",
		                   .collective = "hier:ranks_per_node=3",
		                   .on_host = "hier:ranks_per_node=3",
		                   .bucket_bytes = 5000,
		                   .levels = -1});
		check(3, settings,
		      (struct run){.compressor = "none",
		                   .collective = "hier:ranks_per_node=2",
		                   .on_host = "hier:ranks_per_node=2",
		                   .bucket_bytes = 5000,
		                   .within = 1e-6,
		                   .levels = -1});
		unsetenv("FAKE_NCCL_ABSENT");
	}
	if (!only || !strcmp(only, "adapts")) {
		check_adapts("ring");
		if (with_nccl)
			check_adapts("nccl");
	}
	if (!only) {
		struct run half = {.compressor = "topk:density=0.1",
		                   .collective = "nccl",
		                   .bucket_bytes = 5000,
		                   .dtype = GRADCOMP_BF16,
		                   .within = 1e-2,
		                   .share_within = 1e-2};
		if (with_nccl)
			check(2, settings, half);
		half.collective = "ring";
		check(2, settings, half);
		struct run looked_at = half;
		looked_at.collective = with_nccl ? "nccl" : "ring";
		check(3, verified, looked_at);
		looked_at.compressor = "powersgd:rank=4";
		looked_at.dtype = GRADCOMP_F32;
		check(2, verified, looked_at);
		half.compressor = "block:bits=4";
		half.within = 0.1;
		check(2, settings, half);
	}
	return done_testing();
}
