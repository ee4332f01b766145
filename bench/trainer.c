/* A training step without the training: the passes take known times, layer by layer, in
 * which the rank sleeps (or spins) and its gradients appear; all else is the reducer's. So
 * what a schedule hides, and what a model predicts, can be held against what was to be had.
 *
 *     srun -N4 --mpi=pmix trainer [OPTION]...
 *
 *     --model FILE        tensors and times of a model file (gradcomp plan), or
 *     --layers N --numbers N --forward S --backward S
 *                         N tensors of N numbers each; seconds of a whole pass (24, 262144, 0.02, 0.04)
 *     --scale X           all times of the passes X times as long
 *     --steps N --warm N  measured steps (30), and those before them (40)
 *     --spin              compute until then instead of sleeping: it takes a core
 *     --work              compute as much as takes so long when all ranks do nothing else: beside the
 *                         reducer's threads passes are then longer, as those of a program are
 *     --each-layer        the next forward pass waits for layers, not for the step
 *     --delay D           averages may be applied up to D steps late
 *     --repeat N          measure so often, one line each
 *     --json FILE         rank 0 writes its lines there
 *
 * Compressor, collective and schedule are what srun was told. Rank 0 prints a line of JSON:
 * step_s (median of the slowest rank's steps), mean_s, compute_s (the passes alone; of --work measured),
 * exposed_s, sent_bytes a step, buckets, ranks. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include <gradcomp/gradcomp.h>
#include "cost/planning.h"

typedef struct layer {
	uint64_t numel, dims[2];
	double forward, backward;
	float *gradient;
} layer;

typedef struct trainer {
	layer *layer;
	gradcomp_tensor_desc *tensors;
	uint32_t n;
	double compute; /* seconds of both passes */
	uint64_t most;
	float *noise; /* gradients are copies of it */
	int spin, work, each_layer;
	double pace; /* --work's: pieces a second */
	double copy; /* and seconds to copy a number */
	gradcomp_group *world;
	gradcomp_reducer *reducer;
} trainer;

static gradcomp_error err;

static void die(const char *what, const char *why)
{
	fprintf(stderr, "trainer: %s: %s\n", what, why);
	exit(1);
}

static void must(gradcomp_status st, const char *what)
{
	if (st)
		die(what, err.text);
}

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void until(const trainer *t, double when)
{
	struct timespec at = {(time_t)when, (long)((when - floor(when)) * 1e9)};
	if (t->spin)
		while (now() < when)
			;
	else
		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL) == EINTR)
			;
}

static void piece(void)
{
	volatile double x = 1;
	for (int i = 0; i < 1000; i++)
		x = x * 1.0000001 + 1e-9;
}

/* A pass goes on for `seconds`, which began at *at. */
static void pass(const trainer *t, double *at, double seconds)
{
	*at += seconds;
	if (t->work)
		for (long k = (long)(seconds * t->pace); k > 0; k--)
			piece();
	else
		until(t, *at);
}

/* A gradient appears; what copying it takes is in the layer's seconds. */
static double appear(const trainer *t, const layer *l, uint64_t number)
{
	memcpy(l->gradient, t->noise + number * 61 % 4096, l->numel * sizeof(float));
	return t->work ? fmax(0, l->backward - t->copy * (double)l->numel) : l->backward;
}

/* Sums of twelve uniform numbers, near enough to a gradient's. */
static void make_noise(trainer *t, int rank)
{
	uint64_t state = 88172645463325252u + (uint64_t)rank;
	t->noise = malloc((t->most + 4096) * sizeof *t->noise);
	if (!t->noise)
		die("gradients", "no memory");
	for (uint64_t i = 0; i < t->most + 4096; i++) {
		double x = -6;
		for (int k = 0; k < 12; k++) {
			state = state * 6364136223846793005u + 1442695040888963407u;
			x += (double)(state >> 11) * 0x1p-53;
		}
		t->noise[i] = (float)x;
	}
}

static void add_layer(trainer *t, const uint64_t *dims, uint32_t ndim, double forward, double backward)
{
	layer *l = &t->layer[t->n];
	l->dims[0] = ndim ? dims[0] : 1;
	l->dims[1] = 1;
	for (uint32_t k = 1; k < ndim; k++)
		l->dims[1] *= dims[k];
	l->numel = l->dims[0] * l->dims[1];
	l->forward = forward;
	l->backward = backward;
	l->gradient = malloc((l->numel + 1) * sizeof(float));
	if (!l->gradient)
		die("gradients", "no memory");
	t->tensors[t->n] = (gradcomp_tensor_desc){NULL, l->dims, ndim > 1 ? 2 : ndim, GRADCOMP_F32};
	t->compute += forward + backward;
	t->most = l->numel > t->most ? l->numel : t->most;
	t->n++;
}

static void room_for(trainer *t, uint32_t n)
{
	t->layer = calloc(n, sizeof *t->layer);
	t->tensors = calloc(n, sizeof *t->tensors);
	if (!t->layer || !t->tensors)
		die("layers", "no memory");
}

static void from_file(trainer *t, const char *path, double scale)
{
	model_file *m;
	must(model_file_read(path, &m, &err), "model");
	room_for(t, m->ntensors);
	for (uint32_t i = 0; i < m->ntensors; i++)
		add_layer(t, m->tensors[i].dims, m->tensors[i].ndim, scale * m->tensors[i].forward,
		          scale * m->tensors[i].backward);
	model_file_free(m);
}

static void step(trainer *t, uint64_t number)
{
	double at = now();
	for (uint32_t i = 0; i < t->n; i++) {
		if (t->each_layer) {
			must(gradcomp_reducer_wait_for(t->reducer, i, &err), "wait_for");
			double here = now();
			at = here > at ? here : at;
		}
		pass(t, &at, t->layer[i].forward);
	}
	if (t->each_layer) {
		must(gradcomp_reducer_wait(t->reducer, &err), "wait");
		at = now() > at ? now() : at;
	}
	for (uint32_t i = t->n; i-- > 0;) {
		layer *l = &t->layer[i];
		pass(t, &at, appear(t, l, number));
		must(gradcomp_reducer_ready(t->reducer, i, l->gradient, &err), "ready");
	}
	if (!t->each_layer)
		must(gradcomp_reducer_wait(t->reducer, &err), "wait");
}

static int by_size(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* How fast ranks compute and copy while all of them do, and what the passes take then. */
static void calibrate(trainer *t)
{
	enum { PASSES = 9 };
	double took[PASSES], start, now_, at = 0, bytes = 0;
	long pieces = 0;
	must(gradcomp_barrier(t->world, &err), "barrier");
	for (start = now(); (now_ = now()) - start < 0.5; pieces++)
		piece();
	t->pace = (double)pieces / (now_ - start);
	must(gradcomp_barrier(t->world, &err), "barrier");
	for (int k = 0; k < PASSES; k++) {
		start = now();
		for (uint32_t i = 0; i < t->n; i++)
			appear(t, &t->layer[i], (uint64_t)k), bytes += (double)t->layer[i].numel;
		took[k] = now() - start;
	}
	qsort(took, PASSES, sizeof *took, by_size);
	t->copy = bytes > 0 ? took[PASSES / 2] * PASSES / bytes : 0;
	must(gradcomp_barrier(t->world, &err), "barrier");
	for (int k = 0; k < PASSES; k++) {
		start = now();
		for (uint32_t i = 0; i < t->n; i++) {
			pass(t, &at, t->layer[i].forward);
			pass(t, &at, appear(t, &t->layer[i], (uint64_t)k));
		}
		took[k] = now() - start;
	}
	must(gradcomp_allreduce(t->world, took, PASSES, GRADCOMP_F64, GRADCOMP_MAX, &err), "all-reduce");
	qsort(took, PASSES, sizeof *took, by_size);
	t->compute = took[PASSES / 2];
}

/* One line of figures; what rank 0 has to say of them. */
static void measure(trainer *t, uint64_t first, int steps, FILE *out)
{
	gradcomp_reducer_stats before = {.struct_size = sizeof before}, after = before;
	double *took = calloc((size_t)steps, sizeof *took), sum = 0;
	int P = gradcomp_group_nranks(t->world);
	if (!took)
		die("steps", "no memory");
	must(gradcomp_barrier(t->world, &err), "barrier");
	gradcomp_reducer_get_stats(t->reducer, &before);
	for (int s = 0; s < steps; s++) {
		double start = now();
		step(t, first + (uint64_t)s);
		took[s] = now() - start;
	}
	gradcomp_reducer_get_stats(t->reducer, &after);
	must(gradcomp_allreduce(t->world, took, (uint64_t)steps, GRADCOMP_F64, GRADCOMP_MAX, &err), "all-reduce");
	for (int s = 0; s < steps; s++)
		sum += took[s];
	qsort(took, (size_t)steps, sizeof *took, by_size);
	if (out)
		fprintf(out,
		        "{\"step_s\": %.6f, \"mean_s\": %.6f, \"compute_s\": %.6f, \"exposed_s\": %.6f, \"exchange_s\": %.6f, "
		        "\"encode_s\": %.6f, \"decode_s\": %.6f, \"sent_bytes\": %.0f, \"buckets\": %u, \"ranks\": %d}\n",
		        took[steps / 2], sum / steps, t->compute, (after.exposed_s - before.exposed_s) / steps,
		        (after.exchange_s - before.exchange_s) / steps, (after.encode_s - before.encode_s) / steps,
		        (after.decode_s - before.decode_s) / steps, (after.wire_bytes - before.wire_bytes) / steps,
		        after.buckets, P);
	free(took);
}

static double number(const char *text, const char *what)
{
	char *end;
	double x = strtod(text, &end);
	if (*end || end == text || !(x >= 0))
		die(what, "needs a number that is not negative");
	return x;
}

int main(int argc, char **argv)
{
	double layers = 24, numbers = 262144, forward = 0.02, backward = 0.04, scale = 1, steps = 30, warm = 40,
	       delay = 0;
	double repeat = 1;
	const char *model = NULL, *json = NULL;
	const struct {
		const char *name;
		double *value;
		const char **text;
	} options[] = {{"--layers", &layers, NULL},     {"--numbers", &numbers, NULL}, {"--forward", &forward, NULL},
	               {"--backward", &backward, NULL}, {"--scale", &scale, NULL},     {"--steps", &steps, NULL},
	               {"--warm", &warm, NULL},         {"--delay", &delay, NULL},     {"--model", NULL, &model},
	               {"--json", NULL, &json},         {"--repeat", &repeat, NULL}};
	gradcomp_reducer_options o = {.struct_size = sizeof o};
	trainer t = {0};
	gradcomp_job *job;
	FILE *out = NULL;

	for (int i = 1; i < argc; i++) {
		size_t k = 0, n = sizeof options / sizeof options[0];
		while (k < n && strcmp(argv[i], options[k].name))
			k++;
		if (k < n && i + 1 < argc && options[k].text)
			*options[k].text = argv[++i];
		else if (k < n && i + 1 < argc)
			*options[k].value = number(argv[i + 1], argv[i]), i++;
		else if (!strcmp(argv[i], "--spin"))
			t.spin = 1;
		else if (!strcmp(argv[i], "--work"))
			t.work = 1;
		else if (!strcmp(argv[i], "--each-layer"))
			t.each_layer = 1;
		else
			die(argv[i], "is no option of mine; see the head of trainer.c");
	}
	if (!(steps >= 1) || !(layers >= 1 && layers <= 1e6) || !(numbers <= 1e10))
		die("arguments", "at least one step, 1 to 1000000 layers of at most 1e10 numbers");
	prctl(PR_SET_TIMERSLACK, 1);
	if (model) {
		from_file(&t, model, scale);
	} else {
		/* Square, as near as it goes: a matrix has something to compress. */
		uint64_t side = (uint64_t)sqrt(numbers),
			 dims[2] = {side ? side : 1, side ? (uint64_t)numbers / side : 1};
		room_for(&t, (uint32_t)layers);
		for (uint32_t i = 0; i < (uint32_t)layers; i++)
			add_layer(&t, dims, 2, scale * forward / layers, scale * backward / layers);
	}
	must(gradcomp_job_create(NULL, &job, &err), "join");
	t.world = gradcomp_job_world(job);
	o.delay = (uint32_t)delay;
	must(gradcomp_reducer_create(t.world, t.tensors, t.n, &o, &t.reducer, &err), "reducer");
	make_noise(&t, gradcomp_job_rank(job));
	if (t.work)
		calibrate(&t);
	if (gradcomp_job_rank(job) == 0) {
		out = json ? fopen(json, "w") : stdout;
		if (!out)
			die(json, strerror(errno));
	}
	for (int s = 0; s < (int)warm; s++)
		step(&t, (uint64_t)s);
	for (int k = 0; k < (int)repeat; k++)
		measure(&t, (uint64_t)(warm + k * steps), (int)steps, out);
	if (out && fclose(out))
		die(json ? json : "stdout", strerror(errno));
	/* Averages that are late with a delay come to an end here. */
	gradcomp_reducer_free(t.reducer);
	for (uint32_t i = 0; i < t.n; i++)
		free(t.layer[i].gradient);
	free(t.layer);
	free(t.tensors);
	free(t.noise);
	must(gradcomp_job_free(job, &err), "leave");
	return 0;
}
