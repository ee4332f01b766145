/* After the gradients: work that every rank would do alike, shared where that is faster.
 *
 *     cc -o lamb lamb.c $(pkg-config --cflags --libs gradcomp) -lm
 *     srun --mpi=pmix -N4 --gradcomp=none ./lamb 200
 *
 * LAMB is Adam with LARS's norms: a layer's step is as long as its weights are, not as its
 * gradient is. Both parts are the same on all ranks. The norms make two numbers a layer out
 * of all of them, so sharing them takes a small message; Adam's update makes three
 * numbers out of every one, and they must be known everywhere. The library times both and
 * says what it does; the results are the same bits either way.
 *
 * What is trained is of no use: every rank pulls the weights to a place of its own, and they
 * go to the middle of these. */
#include <gradcomp/gradcomp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 24 };

struct layer {
	uint64_t n;
	float *weight, *gradient;
	float *adam; /* 3 n: mean, square, and the step they make: all that update() changes */
	float norms[2];
};

static struct layer layer[LAYERS];
static int step;

/* Adam's means, and the step they make. */
static void update(void *ctx, uint32_t i)
{
	struct layer *l = &layer[i];
	float *mean = l->adam, *square = l->adam + l->n, *move = l->adam + 2 * l->n;
	float unbias1 = 1 - powf(0.9f, (float)step), unbias2 = 1 - powf(0.999f, (float)step);
	(void)ctx;
	for (uint64_t k = 0; k < l->n; k++) {
		float g = l->gradient[k];
		mean[k] = 0.9f * mean[k] + 0.1f * g;
		square[k] = 0.999f * square[k] + 0.001f * g * g;
		move[k] = mean[k] / unbias1 / (sqrtf(square[k] / unbias2) + 1e-6f);
	}
}

static float norm(const float *x, uint64_t n)
{
	double sum = 0;
	for (uint64_t k = 0; k < n; k++)
		sum += (double)x[k] * x[k];
	return (float)sqrt(sum);
}

static void norms(void *ctx, uint32_t i)
{
	struct layer *l = &layer[i];
	(void)ctx;
	l->norms[0] = norm(l->weight, l->n);
	l->norms[1] = norm(l->adam + 2 * l->n, l->n);
}

/* A place for weight k of layer i that ranks differ in; its mean over ranks is in the middle. */
static float place(int rank, int nranks, int i, uint64_t k)
{
	return sinf((float)(i + 1) * (float)(k % 1009)) + 0.5f * ((float)rank - (float)(nranks - 1) / 2);
}

static double distance(void)
{
	double sum = 0, n = 0;
	for (int i = 0; i < LAYERS; i++)
		for (uint64_t k = 0; k < layer[i].n; k++, n++)
			sum += fabsf(layer[i].weight[k] - place(0, 1, i, k));
	return sum / n;
}

int main(int argc, char **argv)
{
	gradcomp_error err = {0};
	gradcomp_job *job = NULL;
	gradcomp_reducer *reducer = NULL;
	gradcomp_parallel *adam = NULL, *lengths = NULL;
	gradcomp_tensor_desc tensors[LAYERS];
	uint64_t adam_bytes[LAYERS], norm_bytes[LAYERS];
	void *adam_out[LAYERS], *norm_out[LAYERS];
	int steps = argc == 2 ? atoi(argv[1]) : 0;
	if (steps < 1) {
		fprintf(stderr, "usage: lamb STEPS\n");
		return 2;
	}
	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &layer[i];
		l->n = i % 3 ? 512 : 60000 + 4000 * (uint64_t)i;
		l->weight = calloc(l->n, sizeof(float));
		l->gradient = calloc(l->n, sizeof(float));
		l->adam = calloc(l->n, 3 * sizeof(float));
		if (!l->weight || !l->gradient || !l->adam)
			return 1;
		for (uint64_t k = 0; k < l->n; k++)
			l->weight[k] = (float)(k % 7) - 3;
		tensors[i] = (gradcomp_tensor_desc){NULL, &l->n, 1, GRADCOMP_F32};
		adam_bytes[i] = l->n * 3 * sizeof(float);
		adam_out[i] = l->adam;
		norm_bytes[i] = sizeof l->norms;
		norm_out[i] = l->norms;
	}
	if (gradcomp_job_create(NULL, &job, &err) < 0)
		goto fail;
	gradcomp_group *world = gradcomp_job_world(job);
	int rank = gradcomp_job_rank(job), nranks = gradcomp_job_nranks(job);
	double before = distance();
	if (gradcomp_reducer_create(world, tensors, LAYERS, NULL, &reducer, &err) < 0 ||
	    gradcomp_parallel_create(world, adam_bytes, LAYERS, &adam, &err) < 0 ||
	    gradcomp_parallel_create(world, norm_bytes, LAYERS, &lengths, &err) < 0)
		goto fail;
	for (step = 1; step <= steps; step++) {
		for (int i = LAYERS - 1; i >= 0; i--) {
			for (uint64_t k = 0; k < layer[i].n; k++)
				layer[i].gradient[k] = layer[i].weight[k] - place(rank, nranks, i, k);
			if (gradcomp_reducer_ready(reducer, (uint32_t)i, layer[i].gradient, &err) < 0)
				goto fail;
		}
		if (gradcomp_reducer_wait(reducer, &err) < 0 ||
		    gradcomp_parallel_apply(adam, adam_out, update, NULL, &err) < 0 ||
		    gradcomp_parallel_apply(lengths, norm_out, norms, NULL, &err) < 0)
			goto fail;
		float rate = 0.05f * (1 - (float)(step - 1) / (float)steps);
		for (int i = 0; i < LAYERS; i++) {
			const struct layer *l = &layer[i];
			float length = l->norms[1] > 0 ? rate * l->norms[0] / l->norms[1] : 0;
			for (uint64_t k = 0; k < l->n; k++)
				l->weight[k] -= length * l->adam[2 * l->n + k];
		}
	}
	if (rank == 0)
		printf("%d ranks, %d steps: %.3f from where they meet, at first %.3f\nAdam's update: %s\nnorms: %s\n",
		       nranks, steps, distance(), before, gradcomp_parallel_reason(adam),
		       gradcomp_parallel_reason(lengths));
	gradcomp_parallel_free(lengths);
	gradcomp_parallel_free(adam);
	gradcomp_reducer_free(reducer);
	if (gradcomp_job_free(job, &err) < 0)
		goto fail;
	for (int i = 0; i < LAYERS; i++) {
		free(layer[i].weight);
		free(layer[i].gradient);
		free(layer[i].adam);
	}
	return 0;
fail:
	fprintf(stderr, "lamb: %s\n", err.text);
	return 1; /* without waiting for the others: they hear of it */
}
