/* A small training job (compressors.t): linear regression by plain SGD, every rank with
 * data of its own, gradients reduced by whatever srun was told.
 *   train [STEPS [RATE]]
 * Prints "rank R agrees on HASH, loss A to B": HASH of the bits of the weights, the
 * loss over all ranks' data before and after. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gradcomp/gradcomp.h>

enum { IN = 64, OUT = 48, SAMPLES = 96 };

static float weight[IN][OUT], bias[OUT], grad_weight[IN][OUT], grad_bias[OUT];
static float x[SAMPLES][IN], y[SAMPLES][OUT];
static gradcomp_error err;

static uint64_t state;

static float normal(void)
{
	double s = -6;
	for (int i = 0; i < 12; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		s += (double)(state >> 11) * 0x1p-53;
	}
	return (float)s;
}

/* The same truth on all ranks, other samples of it. */
static void make_data(int rank)
{
	static float truth[IN][OUT];
	state = 12345;
	for (int i = 0; i < IN; i++)
		for (int o = 0; o < OUT; o++)
			truth[i][o] = normal() * (i < 8 ? 1.0f : 0.1f);
	state = 777u + (unsigned)rank;
	for (int s = 0; s < SAMPLES; s++) {
		for (int i = 0; i < IN; i++)
			x[s][i] = normal();
		for (int o = 0; o < OUT; o++) {
			y[s][o] = 0.5f + 0.01f * normal();
			for (int i = 0; i < IN; i++)
				y[s][o] += x[s][i] * truth[i][o];
		}
	}
}

/* Gradients of this rank, and its loss. */
static double backward(void)
{
	double loss = 0;
	memset(grad_weight, 0, sizeof grad_weight);
	memset(grad_bias, 0, sizeof grad_bias);
	for (int s = 0; s < SAMPLES; s++)
		for (int o = 0; o < OUT; o++) {
			float off = bias[o] - y[s][o];
			for (int i = 0; i < IN; i++)
				off += x[s][i] * weight[i][o];
			loss += 0.5 * (double)off * off / SAMPLES;
			grad_bias[o] += off / SAMPLES;
			for (int i = 0; i < IN; i++)
				grad_weight[i][o] += off * x[s][i] / SAMPLES;
		}
	return loss;
}

static double mean_loss(gradcomp_group *world)
{
	double loss = backward();
	if (gradcomp_allreduce(world, &loss, 1, GRADCOMP_F64, GRADCOMP_SUM, &err))
		return NAN;
	return loss / gradcomp_group_nranks(world);
}

static uint64_t hash(uint64_t h, const void *p, size_t n)
{
	for (const unsigned char *c = p; n; n--)
		h = (h ^ *c++) * 0x100000001b3u;
	return h;
}

static int failed(int rank, const char *what)
{
	printf("rank %d %s: %s\n", rank, what, err.text);
	return 3;
}

int main(int argc, char **argv)
{
	const uint64_t dims[2] = {IN, OUT}, odims[1] = {OUT};
	const gradcomp_tensor_desc tensors[2] = {{"weight", dims, 2, GRADCOMP_F32}, {"bias", odims, 1, GRADCOMP_F32}};
	int steps = argc > 1 ? atoi(argv[1]) : 400, rank;
	float rate = argc > 2 ? (float)atof(argv[2]) : 0.02f;
	gradcomp_reducer *red;
	gradcomp_job *job;
	double before, after;
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (gradcomp_job_create(NULL, &job, &err))
		return failed(0, "join");
	rank = gradcomp_job_rank(job);
	if (gradcomp_reducer_create(gradcomp_job_world(job), tensors, 2, NULL, &red, &err))
		return failed(rank, "reducer");
	make_data(rank);
	before = mean_loss(gradcomp_job_world(job));
	for (int s = 0; s < steps; s++) {
		backward();
		if (gradcomp_reducer_ready(red, 1, grad_bias, &err) ||
		    gradcomp_reducer_ready(red, 0, grad_weight, &err) || gradcomp_reducer_wait(red, &err))
			return failed(rank, "step");
		for (int o = 0; o < OUT; o++) {
			bias[o] -= rate * grad_bias[o];
			for (int i = 0; i < IN; i++)
				weight[i][o] -= rate * grad_weight[i][o];
		}
	}
	after = mean_loss(gradcomp_job_world(job));
	gradcomp_reducer_free(red);
	printf("rank %d agrees on %016llx, loss %.4f to %.4f\n", rank,
	       (unsigned long long)hash(hash(0xcbf29ce484222325u, weight, sizeof weight), bias, sizeof bias), before,
	       after);
	return gradcomp_job_free(job, &err) ? failed(rank, "leave") : 0;
}
