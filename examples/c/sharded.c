/* Sharded training (ZeRO, FSDP) with coded messages: a rank keeps a shard of every layer's weights,
 * layers are gathered in 8 bits a number when they are needed, and their gradients reduced to their
 * owners in 4 bits, with error feedback.
 *
 *     cc -o sharded sharded.c $(pkg-config --cflags --libs gradcomp) -lm
 *     srun -N4 ./sharded 100
 *
 * Two coders, so that gathers and reductions go on at the same time. While a layer is at work the
 * next one is on its way. What is trained is of no use: every rank pulls the weights to a place of
 * its own, and they go to the middle of these. */
#include <gradcomp/coder.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAYERS = 8 };

struct layer {
	uint64_t n, *counts, begin, own; /* numbers of it; of each rank's shard; before this rank's; of it */
	float *shard;                    /* exact; the rest of the training sees what it decodes to */
	float *full;                     /* gathered */
	float *gradient;                 /* that of the whole layer, then the coder's workspace */
	float *mean;                     /* the shard's */
	gradcomp_coder_request *gather, *reduce;
};

static struct layer layer[LAYERS];
static gradcomp_error err;

static void need(gradcomp_status st)
{
	if (st == GRADCOMP_OK)
		return;
	fprintf(stderr, "sharded: %s\n", err.text);
	exit(1);
}

static float place(int rank, int nranks, uint64_t k)
{
	return sinf((float)(k % 1009)) + 0.5f * ((float)rank - (float)(nranks - 1) / 2);
}

/* Divides as evenly as it goes; the first ranks have one number more. */
static void layer_make(struct layer *l, uint64_t n, int rank, int nranks)
{
	l->n = n;
	l->counts = calloc((size_t)nranks, sizeof *l->counts);
	for (int r = 0; r < nranks; r++) {
		l->counts[r] = n / (uint64_t)nranks + ((uint64_t)r < n % (uint64_t)nranks);
		l->begin += r < rank ? l->counts[r] : 0;
	}
	l->own = l->counts[rank];
	l->shard = calloc(l->own + 1, sizeof *l->shard);
	l->mean = calloc(l->own + 1, sizeof *l->mean);
	l->full = calloc(n, sizeof *l->full);
	l->gradient = calloc(n, sizeof *l->gradient);
	if (!l->counts || !l->shard || !l->mean || !l->full || !l->gradient)
		exit(1);
}

static double saved(gradcomp_coder *coder)
{
	gradcomp_coder_stats s = {.struct_size = sizeof s};
	gradcomp_coder_get_stats(coder, &s);
	return s.dense_bytes > 0 ? s.wire_bytes / s.dense_bytes : 0;
}

int main(int argc, char **argv)
{
	int steps = argc > 1 ? atoi(argv[1]) : 100;
	gradcomp_job *job;
	gradcomp_coder *weights, *gradients;
	gradcomp_coder_options options = {.struct_size = sizeof options};
	need(gradcomp_job_create(NULL, &job, &err));
	int rank = gradcomp_job_rank(job), P = gradcomp_job_nranks(job);
	options.name = "weights";
	need(gradcomp_coder_create(gradcomp_job_world(job), "block:bits=8", &options, &weights, &err));
	options.name = "gradients";
	need(gradcomp_coder_create(gradcomp_job_world(job), "block:bits=4", &options, &gradients, &err));
	for (int i = 0; i < LAYERS; i++)
		layer_make(&layer[i], 20000 + 777 * (uint64_t)i, rank, P);

	for (int step = 0; step < steps; step++) {
		for (int i = 0; i < LAYERS; i++) {
			struct layer *l = &layer[i];
			need(gradcomp_coder_all_gather_start(weights, l->shard, l->full, l->counts, GRADCOMP_F32,
			                                     &l->gather, &err));
		}
		for (int i = 0; i < LAYERS; i++) {
			struct layer *l = &layer[i];
			need(gradcomp_coder_wait(l->gather, &err));
			for (uint64_t k = 0; k < l->n; k++)
				l->gradient[k] = l->full[k] - place(rank, P, k);
			need(gradcomp_coder_reduce_scatter_start(gradients, l->gradient, l->mean, l->counts,
			                                         GRADCOMP_F32, 1.0 / P, (uint32_t)i, &l->reduce, &err));
		}
		for (int i = 0; i < LAYERS; i++) {
			struct layer *l = &layer[i];
			need(gradcomp_coder_wait(l->reduce, &err));
			for (uint64_t k = 0; k < l->own; k++)
				l->shard[k] -= 0.2f * l->mean[k];
		}
	}

	double distance = 0, numbers = 0;
	for (int i = 0; i < LAYERS; i++)
		for (uint64_t k = 0; k < layer[i].own; k++, numbers++)
			distance += fabsf(layer[i].shard[k] - place(0, 1, layer[i].begin + k));
	double sums[2] = {distance, numbers};
	need(gradcomp_allreduce(gradcomp_job_world(job), sums, 2, GRADCOMP_F64, GRADCOMP_SUM, &err));
	if (rank == 0)
		printf("%d steps on %d ranks: weights are %.4f from where they belong; gathers sent %.2f of their "
		       "bytes, "
		       "reductions %.2f\n",
		       steps, P, sums[0] / sums[1], saved(weights), saved(gradients));

	gradcomp_coder_free(weights);
	gradcomp_coder_free(gradients);
	for (int i = 0; i < LAYERS; i++) {
		struct layer *l = &layer[i];
		free(l->counts), free(l->shard), free(l->mean), free(l->full), free(l->gradient);
	}
	need(gradcomp_job_free(job, &err));
	return 0;
}
