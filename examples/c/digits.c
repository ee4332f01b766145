/* Trains a network of one hidden layer on handwritten digits, data-parallel.
 *
 *     ./digits-data.py digits.bin
 *     cc -o digits digits.c $(pkg-config --cflags --libs gradcomp) -lm
 *     srun --mpi=pmix -N4 --gradcomp=topk:density=0.05 ./digits digits.bin 600
 *
 * Every rank draws its own images; the reducer averages the gradients. A rank's
 * numbers stay equal to the others' because all start from the same weights.
 * Alone, without srun, it is the same program on one rank. */
#include <gradcomp/gradcomp.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 64, HIDDEN = 128, CLASSES = 10, IMAGE = PIXELS + 1, BATCH = 16 };
enum { W1 = 0, B1 = W1 + HIDDEN * PIXELS, W2 = B1 + HIDDEN, B2 = W2 + CLASSES * HIDDEN, PARAMETERS = B2 + CLASSES };

static float weight[PARAMETERS], gradient[PARAMETERS];
static const int offset[] = {W1, B1, W2, B2};
static uint64_t random_state;

static double uniform(void) /* xorshift64 */
{
	random_state ^= random_state << 13, random_state ^= random_state >> 7, random_state ^= random_state << 17;
	return (double)(random_state >> 11) * 0x1p-53;
}

/* x: hidden activations; p: probabilities. */
static int forward(const unsigned char *image, float *x, float *p)
{
	int best = 0;
	float sum = 0;
	for (int h = 0; h < HIDDEN; h++) {
		float a = weight[B1 + h];
		for (int i = 0; i < PIXELS; i++)
			a += weight[W1 + h * PIXELS + i] * (float)image[i] / 16;
		x[h] = a > 0 ? a : 0;
	}
	for (int c = 0; c < CLASSES; c++) {
		p[c] = weight[B2 + c];
		for (int h = 0; h < HIDDEN; h++)
			p[c] += weight[W2 + c * HIDDEN + h] * x[h];
		best = p[c] > p[best] ? c : best;
	}
	float top = p[best];
	for (int c = 0; c < CLASSES; c++)
		sum += p[c] = expf(p[c] - top);
	for (int c = 0; c < CLASSES; c++)
		p[c] /= sum;
	return best;
}

/* Adds one image's gradient of the cross entropy. */
static void backward(const unsigned char *image)
{
	float x[HIDDEN], p[CLASSES], back[HIDDEN] = {0};
	forward(image, x, p);
	p[image[PIXELS]] -= 1;
	for (int c = 0; c < CLASSES; c++) {
		float d = p[c] / BATCH;
		gradient[B2 + c] += d;
		for (int h = 0; h < HIDDEN; h++) {
			gradient[W2 + c * HIDDEN + h] += d * x[h];
			back[h] += d * weight[W2 + c * HIDDEN + h];
		}
	}
	for (int h = 0; h < HIDDEN; h++) {
		float d = x[h] > 0 ? back[h] : 0;
		gradient[B1 + h] += d;
		for (int i = 0; i < PIXELS; i++)
			gradient[W1 + h * PIXELS + i] += d * (float)image[i] / 16;
	}
}

/* The images of a file; *count of them. NULL: unreadable or not such a file. */
static unsigned char *load(const char *path, long *count)
{
	FILE *f = fopen(path, "rb");
	long size = f && !fseek(f, 0, SEEK_END) ? ftell(f) : -1;
	unsigned char *data = size > 0 ? malloc((size_t)size) : NULL;
	int good = data && size % IMAGE == 0 && !fseek(f, 0, SEEK_SET) && fread(data, (size_t)size, 1, f) == 1;
	*count = size / IMAGE;
	for (long i = 0; good && i < *count; i++)
		good = data[i * IMAGE + PIXELS] < CLASSES;
	if (f)
		fclose(f);
	if (!good) {
		free(data);
		return NULL;
	}
	return data;
}

int main(int argc, char **argv)
{
	const uint64_t dims[][2] = {{HIDDEN, PIXELS}, {HIDDEN}, {CLASSES, HIDDEN}, {CLASSES}};
	const gradcomp_tensor_desc tensors[] = {{"hidden.weight", dims[0], 2, GRADCOMP_F32},
	                                        {"hidden.bias", dims[1], 1, GRADCOMP_F32},
	                                        {"out.weight", dims[2], 2, GRADCOMP_F32},
	                                        {"out.bias", dims[3], 1, GRADCOMP_F32}};
	gradcomp_error err = {0};
	gradcomp_job *job = NULL;
	gradcomp_reducer *reducer = NULL;
	long count = 0, right = 0;
	unsigned char *data = argc == 3 ? load(argv[1], &count) : NULL;
	long steps = argc == 3 ? atol(argv[2]) : 0, train = count * 4 / 5;
	if (!data || steps < 1 || train < 1) {
		fprintf(stderr, "usage: digits FILE STEPS, FILE made by digits-data.py\n");
		return 2;
	}
	if (gradcomp_job_create(NULL, &job, &err) < 0 ||
	    gradcomp_reducer_create(gradcomp_job_world(job), tensors, 4, NULL, &reducer, &err) < 0)
		goto fail;
	random_state = 1797;
	for (int i = 0; i < PARAMETERS; i++)
		weight[i] = (float)(uniform() - 0.5) * 0.2f;
	random_state += (uint64_t)gradcomp_job_rank(job) * 0x9e3779b97f4a7c15u;

	for (long step = 0; step < steps; step++) {
		memset(gradient, 0, sizeof gradient);
		for (int i = 0; i < BATCH; i++)
			backward(data + (long)(uniform() * (double)train) * IMAGE);
		for (uint32_t t = 4; t-- > 0;)
			if (gradcomp_reducer_ready(reducer, t, gradient + offset[t], &err) < 0)
				goto fail;
		if (gradcomp_reducer_wait(reducer, &err) < 0)
			goto fail;
		for (int i = 0; i < PARAMETERS; i++)
			weight[i] -= 0.2f * gradient[i];
	}
	for (long i = train; i < count; i++) {
		float x[HIDDEN], p[CLASSES];
		right += forward(data + i * IMAGE, x, p) == data[i * IMAGE + PIXELS];
	}
	if (gradcomp_job_rank(job) == 0)
		printf("%d ranks, %ld steps: %.1f %% of %ld test images right\n", gradcomp_job_nranks(job), steps,
		       100.0 * (double)right / (double)(count - train), count - train);
	gradcomp_reducer_free(reducer);
	free(data);
	data = NULL;
	if (gradcomp_job_free(job, &err) < 0)
		goto fail;
	return 0;
fail:
	fprintf(stderr, "digits: %s\n", err.text);
	free(data);
	return 1; /* without waiting for the others: they hear of it */
}
