/* Ranks whose gradients are on a device and who outlive one of theirs (gradcomp.on_failure=shrink): killed at a random
 * moment, with NCCL's work under way. Those left make all their steps, with the same weights, and a step that is void
 * leaves what they owe as it was. TEST_RUNS, TEST_SEED. */
#include "tests/fake/gpu_model.h"

enum { RANKS = 4, STEPS = 25 };
enum { FINISHED, SHRINKS, VOIDS, TOUCHED };

typedef struct plan {
	const char *compressor, *collective;
	int victim;
	double seconds;
} plan;

static void *die(void *arg)
{
	usleep((useconds_t)(((const plan *)arg)->seconds * 1e6));
	raise(SIGKILL);
	return NULL;
}

/* The arrays by tensor are the last of a saved state: error memory, of compressors that have no state of their own. */
static unsigned char *owed(gradcomp_reducer *r, uint64_t *bytes)
{
	gradcomp_error err;
	unsigned char *p;
	if (gradcomp_reducer_save(r, NULL, 0, bytes, &err))
		return NULL;
	p = malloc(*bytes + 1);
	if (gradcomp_reducer_save(r, p, *bytes, bytes, &err)) {
		free(p);
		return NULL;
	}
	return p;
}

static int same_end(const unsigned char *a, uint64_t na, const unsigned char *b, uint64_t nb)
{
	uint64_t n = 0;
	for (int t = 0; t < N_TENSORS; t++)
		n += sizeof(float) * tensor_numel(t);
	return na >= n && nb >= n && !memcmp(a + na - n, b + nb - n, n);
}

static void body(gradcomp_job *job, int rank, int P, outcome *out, void *arg)
{
	plan *p = arg;
	const int keeps = !strncmp(p->compressor, "topk", 4), doomed = rank == p->victim;
	gradcomp_error err = {0};
	gpu_model m;
	unsigned char *before = NULL;
	uint64_t nbefore = 0;
	pthread_t killer;
	int step = 0;
	(void)P;
	gradcomp_status st = gpu_model_open(&m, gradcomp_job_world(job), GRADCOMP_CUDA, GRADCOMP_F32, p->compressor,
	                                    p->collective, 5000, &err);
	/* All have theirs. */
	if (!st)
		st = gradcomp_barrier(gradcomp_job_world(job), &err);
	if (doomed)
		pthread_create(&killer, NULL, die, p);
	while (!st && step < STEPS) {
		int apply = 1;
		free(before);
		before = keeps ? owed(m.red, &nbefore) : NULL;
		st = gpu_step(&m, rank, step, 0, &err);
		while (st == GRADCOMP_ERR_PEER_LOST) {
			gradcomp_survivors who = {.struct_size = sizeof who};
			st = gradcomp_job_shrink(job, &who, &err);
			if (st)
				break;
			out->number[SHRINKS]++;
			rank = who.rank;
			apply = who.step_done;
			out->number[VOIDS] += !apply;
			if (!apply && before) {
				uint64_t n = 0;
				unsigned char *now = owed(m.red, &n);
				out->number[TOUCHED] += now && !same_end(now, n, before, nbefore);
				free(now);
			}
			/* Done on others, and so in place here. */
			for (int t = 0; apply && t < N_TENSORS; t++)
				cuda_must(cudaMemcpyAsync(m.host[t], m.grad[t], gpu_bytes(&m, t), cudaMemcpyDefault,
				                          m.queue),
				          "copy");
			cuda_must(cudaStreamSynchronize(m.queue), "the stream");
		}
		if (!st && apply) {
			out->mark = mixed(out->mark ^ gpu_fingerprint(&m));
			step++;
		}
	}
	/* One that dies when all is done would have the others leave with an error, as they should. */
	if (doomed) {
		pthread_cancel(killer);
		pthread_join(killer, NULL);
	}
	while (!st && (st = gradcomp_barrier(gradcomp_job_world(job), &err)) == GRADCOMP_ERR_PEER_LOST)
		st = gradcomp_job_shrink(job, NULL, &err);
	out->number[FINISHED] = !st && step == STEPS;
	out->status = st;
	snprintf(out->text, sizeof out->text, "%s", st ? err.text : "");
	free(before);
	if (m.red)
		gpu_model_close(&m);
}

int main(void)
{
	static const char *const compressors[] = {"none", "topk:density=0.1", "powersgd:rank=2"};
	static const char *const settings[] = {"gradcomp.on_failure=shrink", "gradcomp.log=error",
	                                       "transport.timeout=30", NULL};
	const char *runs = getenv("TEST_RUNS"), *seed = getenv("TEST_SEED");
	int shrinks = 0, voids = 0;
	test_seed_value = seed ? (uint64_t)atoll(seed) : 20261124;
	for (int k = 0; k < (runs ? atoi(runs) : 6); k++) {
		uint64_t z = mixed(test_seed_value + (uint64_t)k);
		plan p = {compressors[k % 3], "nccl", (int)(z % RANKS), (double)(z / RANKS % 1000) * 3e-4};
		const outcome *o, *first = NULL;
		int good = 1, left = 0;
		o = run_processes(RANKS, 120, settings, body, &p);
		for (int r = 0; r < RANKS; r++) {
			if (o[r].failed == -SIGKILL && r == p.victim)
				continue;
			first = first ? first : &o[r];
			left++;
			good &= !o[r].failed && o[r].number[FINISHED] > 0 && o[r].mark == first->mark &&
			        o[r].number[TOUCHED] <= 0;
			shrinks += o[r].number[SHRINKS] > 0;
			voids += o[r].number[VOIDS] > 0;
		}
		ok(good && left >= RANKS - 1, "%s on a device: rank %d is killed after %.3f s, the others train on",
		   p.compressor, p.victim, p.seconds);
		for (int r = 0; !good && r < RANKS; r++)
			printf("# rank %d: failed %d, finished %g, %g shrinks, touched %g, %llx, status %d: %s\n", r,
			       o[r].failed, o[r].number[FINISHED], o[r].number[SHRINKS], o[r].number[TOUCHED],
			       (unsigned long long)o[r].mark, o[r].status, o[r].text);
	}
	printf("# %d ranks have shrunk, %d with a step that was void\n", shrinks, voids);
	return done_testing();
}
