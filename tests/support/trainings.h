/* Small models that learn, from the first gradient to the last: ranks average with a compressor, and
 * gradcomp.verify looks at every step.
 *
 *     letters    the next letter of this project's headers from the 8 before it: letters as vectors, a
 *                perceptron, 80,382 numbers
 *     classes    65 classes of noisy vectors: a perceptron of 80,665 numbers, with layers of other scales
 */
#ifndef TESTS_SUPPORT_TRAININGS_H
#define TESTS_SUPPORT_TRAININGS_H

#include "tests/support/thread_ranks.h"

#include <glob.h>
#include <math.h>

enum { LETTERS, CLASSES, TASKS };
enum { SGD, ADAM, OPTIMIZERS };
static const char *const task_names[] = {"letters", "classes"}, *const optimizer_names[] = {"SGD", "Adam"};

enum { ALPHABET = 96, CONTEXT = 8, BATCH = 16, PARAMETERS = 5 };

/* A task has these: vectors of `embed` for letters (0: what comes in are vectors), and layers. */
static const struct {
	int embed, in, hidden, out;
} shapes[TASKS] = {
	[LETTERS] = {16, 16 * CONTEXT, 350, ALPHABET},
	[CLASSES] = {0, 64, 620, 65},
};

typedef struct training {
	const char *spec, *collective; /* collective NULL: the usual one */
	int task, optimizer, steps;
	float rate, momentum;
	/* Results: mean losses of the first and the last steps of rank 0, and what went wrong. */
	double first, last;
	int failed_step[MAX_RANKS];
	char failed[MAX_RANKS][512];
} training;

static char *train_text;
static size_t train_letters;

/* xorshift64*, one a rank: what a rank draws does not depend on the others. */
static uint64_t train_next(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 2685821657736338717u;
}

static float train_normal(uint64_t *state)
{
	float s = -6;
	for (int i = 0; i < 12; i++)
		s += (float)(train_next(state) >> 40) * 0x1p-24f;
	return s;
}

/* All that is to be learned from; once. */
static int train_data(void)
{
	const char *source = getenv("GRADCOMP_SRC");
	char pattern[4096];
	glob_t found;
	snprintf(pattern, sizeof pattern, "%s/include/gradcomp/*.h", source ? source : "..");
	if (glob(pattern, 0, NULL, &found))
		return 0;
	train_text = malloc(1 << 22);
	for (size_t i = 0; i < found.gl_pathc; i++) {
		FILE *f = fopen(found.gl_pathv[i], "r");
		for (int c; f && train_letters < 1 << 22 && (c = getc(f)) != EOF;)
			train_text[train_letters++] = (char)(c >= 32 && c < 127 ? c - 32 : ALPHABET - 1);
		if (f)
			fclose(f);
	}
	globfree(&found);
	return train_letters > 10000;
}

typedef struct network {
	int task, embed, in, hidden, out;
	uint64_t dims[PARAMETERS][2], numel[PARAMETERS];
	float *w[PARAMETERS], *g[PARAMETERS], *m[PARAMETERS], *v[PARAMETERS];
	float *x, *z, *dz, *y;
	int letters[CONTEXT];
} network;

enum { EMBED, W1, B1, W2, B2 };

static void network_open(network *net, int task)
{
	uint64_t state = 88172645463325252u;
	*net = (network){.task = task,
	                 .embed = shapes[task].embed,
	                 .in = shapes[task].in,
	                 .hidden = shapes[task].hidden,
	                 .out = shapes[task].out};
	const uint64_t in = (uint64_t)net->in, hidden = (uint64_t)net->hidden, out = (uint64_t)net->out;
	const uint64_t dims[PARAMETERS][2] = {
		{ALPHABET, (uint64_t)net->embed}, {in, hidden}, {hidden, 0}, {hidden, out}, {out, 0}};
	for (int p = 0; p < PARAMETERS; p++) {
		const float spread = p == W1 || p == W2 ? sqrtf(2 / (float)dims[p][0]) : p == EMBED ? 1 : 0;
		memcpy(net->dims[p], dims[p], sizeof dims[p]);
		net->numel[p] = dims[p][0] * (p == B1 || p == B2 ? 1 : dims[p][1]);
		net->w[p] = calloc(net->numel[p] + 1, sizeof(float));
		net->g[p] = calloc(net->numel[p] + 1, sizeof(float));
		net->m[p] = calloc(net->numel[p] + 1, sizeof(float));
		net->v[p] = calloc(net->numel[p] + 1, sizeof(float));
		for (uint64_t i = 0; i < net->numel[p]; i++)
			net->w[p][i] = spread * train_normal(&state);
	}
	net->x = calloc(in, sizeof(float));
	net->z = calloc(hidden, sizeof(float));
	net->dz = calloc(hidden, sizeof(float));
	net->y = calloc(out, sizeof(float));
}

static void network_close(network *net)
{
	for (int p = 0; p < PARAMETERS; p++)
		free(net->w[p]), free(net->g[p]), free(net->m[p]), free(net->v[p]);
	free(net->x), free(net->z), free(net->dz), free(net->y);
}

/* Draws what comes in; returns what is right. Classes are vectors that follow from their number; the first
 * numbers of each are much larger than the others. */
static int draw_sample(network *net, uint64_t *state)
{
	if (net->task == LETTERS) {
		const size_t at = CONTEXT + train_next(state) % (train_letters - CONTEXT);
		for (int c = 0; c < CONTEXT; c++) {
			net->letters[c] = train_text[at - CONTEXT + (size_t)c];
			memcpy(net->x + c * net->embed, net->w[EMBED] + net->letters[c] * net->embed,
			       (size_t)net->embed * sizeof(float));
		}
		return train_text[at];
	}
	const int class = (int)(train_next(state) % (uint64_t)net->out);
	uint64_t of_class = 1000003u * (uint64_t)(class + 1);
	for (int i = 0; i < net->in; i++)
		net->x[i] = (train_normal(&of_class) + 0.7f * train_normal(state)) * (i < 8 ? 4 : 0.5f);
	return class;
}

static void add_row(float *to, float a, const float *row, int n)
{
	for (int i = 0; i < n; i++)
		to[i] += a * row[i];
}

static float dot(const float *a, const float *b, int n)
{
	float s[8] = {0}, all = 0;
	int i = 0;
	for (; i + 8 <= n; i += 8)
		for (int j = 0; j < 8; j++)
			s[j] += a[i + j] * b[i + j];
	for (; i < n; i++)
		s[0] += a[i] * b[i];
	for (int j = 0; j < 8; j++)
		all += s[j];
	return all;
}

/* One sample forwards and backwards: adds to gradients, returns the loss. */
static double learn_sample(network *net, int right)
{
	const int in = net->in, hidden = net->hidden, out = net->out;
	double sum = 0, most = -1e30;
	memcpy(net->z, net->w[B1], (size_t)hidden * sizeof(float));
	for (int i = 0; i < in; i++)
		add_row(net->z, net->x[i], net->w[W1] + i * hidden, hidden);
	memcpy(net->y, net->w[B2], (size_t)out * sizeof(float));
	for (int h = 0; h < hidden; h++)
		if (net->z[h] > 0)
			add_row(net->y, net->z[h], net->w[W2] + h * out, out);
	for (int o = 0; o < out; o++)
		most = net->y[o] > most ? net->y[o] : most;
	const double of_right = net->y[right] - most;
	for (int o = 0; o < out; o++)
		sum += exp(net->y[o] - most);
	for (int o = 0; o < out; o++)
		net->y[o] = (float)((exp(net->y[o] - most) / sum - (o == right)) / BATCH);
	add_row(net->g[B2], 1, net->y, out);
	for (int h = 0; h < hidden; h++) {
		net->dz[h] = net->z[h] > 0 ? dot(net->w[W2] + h * out, net->y, out) : 0;
		if (net->z[h] > 0)
			add_row(net->g[W2] + h * out, net->z[h], net->y, out);
	}
	add_row(net->g[B1], 1, net->dz, hidden);
	for (int i = 0; i < in; i++)
		add_row(net->g[W1] + i * hidden, net->x[i], net->dz, hidden);
	for (int i = 0; net->embed && i < in; i++)
		net->g[EMBED][net->letters[i / net->embed] * net->embed + i % net->embed] +=
			dot(net->w[W1] + i * hidden, net->dz, hidden);
	return log(sum) - of_right;
}

static void update(network *net, const training *t, int step)
{
	const float correct1 = 1 - powf(0.9f, (float)step + 1), correct2 = 1 - powf(0.999f, (float)step + 1);
	for (int p = 0; p < PARAMETERS; p++)
		for (uint64_t i = 0; i < net->numel[p]; i++) {
			const float g = net->g[p][i];
			if (t->optimizer == ADAM) {
				net->m[p][i] += 0.1f * (g - net->m[p][i]);
				net->v[p][i] += 0.001f * (g * g - net->v[p][i]);
				net->w[p][i] -=
					t->rate * net->m[p][i] / correct1 / (sqrtf(net->v[p][i] / correct2) + 1e-8f);
			} else {
				net->m[p][i] = t->momentum * net->m[p][i] + g;
				net->w[p][i] -= t->rate * net->m[p][i];
			}
		}
}

static gradcomp_status train_step(network *net, gradcomp_reducer *red, uint64_t *state, double *loss,
                                  gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	*loss = 0;
	for (int p = 0; p < PARAMETERS; p++)
		memset(net->g[p], 0, net->numel[p] * sizeof(float));
	for (int s = 0; s < BATCH; s++)
		*loss += learn_sample(net, draw_sample(net, state)) / BATCH;
	for (int p = PARAMETERS - 1; p >= 0 && !st; p--)
		st = gradcomp_reducer_ready(red, (uint32_t)p, net->g[p], err);
	return st ? st : gradcomp_reducer_wait(red, err);
}

static void train_rank(gradcomp_job *job, int rank, int P, void *arg)
{
	static const char *const names[PARAMETERS] = {"embed", "w1", "b1", "w2", "b2"};
	training *t = arg;
	gradcomp_error err = {0};
	const gradcomp_reducer_options o = {.struct_size = sizeof o,
	                                    .compressor = t->spec,
	                                    .collective = t->collective,
	                                    .bucket_bytes = 1 << 30,
	                                    .seed = 5};
	gradcomp_tensor_desc desc[PARAMETERS];
	gradcomp_reducer *red = NULL;
	uint64_t state = 1000 + (uint64_t)rank;
	network net;
	(void)P;
	network_open(&net, t->task);
	for (int p = 0; p < PARAMETERS; p++)
		desc[p] = (gradcomp_tensor_desc){
			.name = names[p], .dims = net.dims[p], .ndim = p == B1 || p == B2 ? 1 : 2};
	gradcomp_status st = gradcomp_reducer_create(gradcomp_job_world(job), desc, PARAMETERS, &o, &red, &err);
	for (int step = 0; step < t->steps && !st; step++) {
		double loss;
		t->failed_step[rank] = step;
		st = train_step(&net, red, &state, &loss, &err);
		if (!st)
			update(&net, t, step);
		if (!rank && step < 10)
			t->first += loss / 10;
		if (!rank && step >= t->steps - 30)
			t->last += loss / 30;
	}
	if (st)
		snprintf(t->failed[rank], sizeof t->failed[rank], "%s", err.text);
	gradcomp_reducer_free(red);
	network_close(&net);
}

/* `share`: what may be left of the first loss. */
__attribute__((unused)) static void train(training *t, int P, double share)
{
	char path[4200];
	snprintf(path, sizeof path, "%s", plugin_path_setting());
	const char *const settings[] = {path, "gradcomp.verify=yes", "gradcomp.log=error", "transport.timeout=60",
	                                NULL};
	int failed = -1;
	run_ranks(P, settings, train_rank, t);
	for (int r = P - 1; r >= 0; r--)
		failed = *t->failed[r] ? r : failed;
	ok(failed < 0 && t->last <= share * t->first,
	   "%s, %s, %s%s%s on %d ranks: %d steps, the loss goes from %.2f to %.2f", task_names[t->task],
	   optimizer_names[t->optimizer], t->spec, t->collective ? " over " : "", t->collective ? t->collective : "", P,
	   t->steps, t->first, t->last);
	if (failed >= 0)
		printf("# rank %d, step %d: %s\n", failed, t->failed_step[failed], t->failed[failed]);
}

#endif
