/* Times a candidate's work, without the others: one matrix of the model's sizes goes through it, at two sizes, on
 * the thread that has nothing else to do. Some milliseconds a candidate; done only where something is exposed. On
 * rank 0 also what it would send. */
#include "kinds/autotune/tuner_gpu.h"
#include "step/gpu/gpu.h"
#include "step/levels/hierarchical.h"

#include "base/error.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	MOST = 1 << 20, /* numbers timed: more than the second-level cache holds */
	FEWER = 8,      /* times fewer, the second size */
	REPEAT = 3,
	PIECE = 65536,   /* floats under a code at a time, as in a ring */
	RANKS = 2,       /* whose payloads are decoded */
	LATER = 1000000, /* a step past every warm-up */
	MARKS = 3
};

/* A candidate at work on a bucket of one matrix. */
typedef struct sample {
	const gradcomp_host *host;
	const tuner_gpu_bench *on; /* the device it works on; NULL: the host */
	void *marks[MARKS];        /* timers there */
	double at[MARKS];          /* on the host */
	const struct gradcomp_compressor_v1 *c;
	void *instance;
	uint64_t dims[2], step;
	gradcomp_tensor tensor;
	gradcomp_layout layout;
	gradcomp_bucket bucket;
	gradcomp_plan plan;
	float *x, *error, **state;
	void *scratch, *payload, *merged;
	int *words; /* on the device: a fault, and an overflow */
	double encode, decode;
	int keeps_error;
} sample;

static gradcomp_status check(const char *why, gradcomp_error *err)
{
	return device_check(why, "what a candidate computes", err);
}

/* Zeroes where it works. */
static void *taken(sample *s, size_t bytes, gradcomp_status *st, gradcomp_error *err)
{
	void *p = NULL;
	const char *why = "none";
	if (*st)
		return NULL;
	if (!s->on)
		p = calloc(1, bytes + sizeof(float));
	else if (!device_memory_take(s->on->memory, &p, bytes + sizeof(float), s->on->stream))
		why = s->on->d->zero(s->on->stream, p, bytes + sizeof(float));
	if (s->on ? why != NULL : !p)
		*st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time it with %zu bytes", bytes);
	return p;
}

static void give_back(const sample *s, void *p)
{
	if (s->on)
		device_memory_give_back(s->on->memory, p);
	else
		free(p);
}

static void sample_close(sample *s)
{
	if (s->on)
		device_drain(s->on->d, &s->on->stream, 1);
	if (s->instance)
		s->c->destroy(s->instance);
	for (uint32_t i = 0; s->state && i < s->c->state_arrays; i++)
		give_back(s, s->state[i]);
	free(s->state);
	give_back(s, s->x);
	give_back(s, s->error);
	give_back(s, s->scratch);
	give_back(s, s->payload);
	give_back(s, s->merged);
	give_back(s, s->words);
	for (int k = 0; s->on && k < MARKS; k++)
		s->on->d->event_free(s->marks[k]);
}

/* The time, or a place on the stream. */
static gradcomp_status mark(sample *s, int k, gradcomp_error *err)
{
	s->at[k] = clock_now();
	return s->on ? check(s->on->d->record(s->marks[k], s->on->stream), err) : GRADCOMP_OK;
}

/* Adds what was between two marks, the second of which it waits for. */
static gradcomp_status add_between(sample *s, int from, int to, double *seconds, gradcomp_error *err)
{
	double took = s->at[to] - s->at[from];
	const char *why = s->on ? s->on->d->wait(s->marks[to]) : NULL;
	if (s->on && !why)
		why = s->on->d->elapsed(s->marks[from], s->marks[to], &took);
	*seconds += took;
	return check(why, err);
}

static uint64_t payload_room(const sample *s)
{
	uint64_t most = s->plan.rounds[0].pattern == GRADCOMP_CODED ? s->c->code_bound(s->instance, PIECE) : 0;
	for (uint32_t k = 0; k < s->plan.nrounds; k++) {
		const gradcomp_round *rd = &s->plan.rounds[k];
		uint64_t bytes = rd->pattern == GRADCOMP_CODED ? 0 : round_bytes(rd);
		most = bytes > most ? bytes : most;
	}
	return most;
}

static gradcomp_status rounds_of(sample *s, uint64_t step, gradcomp_error *err)
{
	s->plan = (gradcomp_plan){.struct_size = sizeof s->plan};
	gradcomp_status st = s->c->plan(s->instance, &s->bucket, step, &s->plan, err);
	return st ? st : task_list_check_plan(s->c, s->layout.patterns, s->bucket.numel, &s->plan, err);
}

static gradcomp_status sample_open(sample *s, const candidate *k, uint64_t rows, uint64_t columns, uint32_t patterns,
                                   gradcomp_error *err)
{
	size_t bytes = (size_t)(rows * columns) * sizeof(float);
	uint64_t payload = 0, scratch = 0;
	gradcomp_status st = GRADCOMP_OK;
	s->dims[0] = rows;
	s->dims[1] = columns;
	s->step = LATER;
	s->keeps_error = gradcomp_keeps_error(s->c, k->specs[0]->values);
	s->tensor = (gradcomp_tensor){.name = "sample", .numel = rows * columns, .dims = s->dims, .ndim = 2};
	s->layout = (gradcomp_layout){.struct_size = sizeof s->layout,
	                              .ntensors = 1,
	                              .tensors = &s->tensor,
	                              .numel = rows * columns,
	                              .nranks = RANKS,
	                              .seed = 1,
	                              .patterns = patterns,
	                              .device = s->on ? GRADCOMP_CUDA : GRADCOMP_HOST};
	s->bucket = (gradcomp_bucket){.struct_size = sizeof s->bucket, .ntensors = 1, .numel = rows * columns};
	s->x = taken(s, bytes, &st, err);
	s->error = taken(s, bytes, &st, err);
	s->state = calloc(s->c->state_arrays + 1, sizeof *s->state);
	if (!st && !s->state)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory to time it");
	for (uint32_t i = 0; i < s->c->state_arrays && !st; i++)
		s->state[i] = taken(s, bytes, &st, err);
	if (s->on)
		s->words = taken(s, 2 * sizeof *s->words, &st, err);
	for (int m = 0; s->on && !st && m < MARKS; m++)
		st = check(s->on->d->timer(&s->marks[m]), err);
	if (!st)
		st = s->c->create(s->host, k->specs[0]->values, &s->layout, &s->instance, err);
	if (!st && s->on && patterns & GRADCOMP_PATTERN_BIT(GRADCOMP_CODED))
		st = s->c->code_on(s->instance, s->on->ops, s->on->stream, s->words, err);
	/* Steps differ in what they send. */
	for (uint64_t i = 0; !st && i < REPEAT; i++) {
		st = rounds_of(s, s->step + i, err);
		if (!st) {
			uint64_t room = payload_room(s);
			payload = room > payload ? room : payload;
			scratch = s->plan.scratch_bytes > scratch ? s->plan.scratch_bytes : scratch;
		}
	}
	s->scratch = taken(s, scratch, &st, err);
	s->payload = taken(s, payload, &st, err);
	s->merged = taken(s, payload, &st, err);
	return st;
}

static gradcomp_status coded(sample *s, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	for (uint64_t at = 0; !st && at < s->bucket.numel; at += PIECE) {
		uint64_t len = s->bucket.numel - at < PIECE ? s->bucket.numel - at : PIECE, bytes = 0;
		st = mark(s, 0, err);
		if (!st)
			st = s->c->code(s->instance, s->x + at, len, at, s->payload, &bytes, err);
		if (!st)
			st = mark(s, 1, err);
		if (!st)
			st = s->c->code_decode_add(s->instance, s->payload, bytes, s->error + at, len, err);
		if (!st)
			st = mark(s, 2, err);
		if (!st)
			st = add_between(s, 0, 1, &s->encode, err);
		if (!st)
			st = add_between(s, 1, 2, &s->decode, err);
	}
	return st;
}

static gradcomp_status one_round(sample *s, const gradcomp_work *w, uint32_t k, gradcomp_error *err)
{
	const gradcomp_round *rd = &s->plan.rounds[k];
	uint64_t want = round_bytes(rd);
	gradcomp_payload in[RANKS] = {{s->payload, want, want}};
	gradcomp_status st = mark(s, 0, err);
	if (rd->flags & GRADCOMP_ROUND_IN_PLACE)
		in[0].data = s->x;
	else if (!st)
		st = s->c->encode(s->instance, w, k, &in[0], err);
	if (!st)
		st = mark(s, 1, err);
	if (!st && rd->pattern == GRADCOMP_MERGED) {
		gradcomp_payload out = {s->merged, want, want};
		st = s->c->merge(s->instance, w, k, &in[0], &in[0], &out, err);
	}
	for (int r = 1; r < RANKS; r++)
		in[r] = in[0];
	if (!st && s->c->decode)
		st = s->c->decode(s->instance, w, k, in, rd->pattern == GRADCOMP_GATHERED ? RANKS : 1, err);
	if (!st)
		st = mark(s, 2, err);
	if (!st)
		st = add_between(s, 0, 1, &s->encode, err);
	return st ? st : add_between(s, 1, 2, &s->decode, err);
}

/* Two steps that are not timed would be more: REPEAT takes care of the first. */
static gradcomp_status step(sample *s, gradcomp_error *err)
{
	int fault[2] = {0};
	gradcomp_status st = rounds_of(s, s->step, err);
	gradcomp_work w = {.struct_size = sizeof w,
	                   .bucket = &s->bucket,
	                   .step = s->step++,
	                   .x = &s->x,
	                   .flat = s->x,
	                   .error = s->keeps_error ? &s->error : NULL,
	                   .error_flat = s->keeps_error ? s->error : NULL,
	                   .state = s->state,
	                   .scratch = s->scratch,
	                   .scratch_bytes = s->plan.scratch_bytes,
	                   .operators = s->on ? s->on->ops : s->host->operators,
	                   .fault = s->on ? s->words : fault};
	if (s->on) {
		w.device = GRADCOMP_CUDA;
		w.queue = s->on->stream;
	}
	w.operators->random_normal(w.queue, s->x, s->bucket.numel, 1, s->step, 0);
	s->encode = s->decode = 0;
	if (!st && s->plan.rounds[0].pattern == GRADCOMP_CODED)
		return coded(s, err);
	for (uint32_t k = 0; !st && k < s->plan.nrounds; k++)
		st = one_round(s, &w, k, err);
	const char *why = s->on ? s->on->ops->failed() : NULL;
	return st || !why ? st : check(why, err);
}

/* The least of some steps: what others do on this core is not the candidate's. */
static gradcomp_status times_on(const tuner *c, const tuner_gpu_bench *on, const candidate *k, uint64_t rows,
                                uint64_t columns, double out[2], gradcomp_error *err)
{
	sample s = {.host = on ? on->host : &c->job->host, .on = on, .c = k->plugins[0]->compressor};
	gradcomp_status st = sample_open(&s, k, rows, columns, registry_patterns(k->plugins[0], k->plugins[1]), err);
	for (int i = 0; !st && i < REPEAT; i++) {
		st = step(&s, err);
		out[0] = !i || s.encode < out[0] ? s.encode : out[0];
		out[1] = !i || s.decode < out[1] ? s.decode : out[1];
	}
	/* A gathered payload comes from all ranks. */
	if (!st && s.plan.rounds[0].pattern == GRADCOMP_GATHERED)
		out[1] *= (double)c->group->nranks / RANKS;
	else if (!st && s.plan.rounds[0].pattern == GRADCOMP_MERGED)
		out[1] *= log2(c->group->nranks);
	sample_close(&s);
	return st;
}

/* Where its reducer would compute: with gradients on a device there, if it can; else what it is given comes
 * to the host, and its averages go back. */
static gradcomp_status times(const tuner *c, const candidate *k, uint64_t rows, uint64_t columns, double out[2],
                             gradcomp_error *err)
{
	const tuner_gpu_bench *on = tuner_gpu_bench_of(c);
	const struct gradcomp_compressor_v1 *of = k->plugins[0]->compressor;
	double down = 0, up = 0;
	gradcomp_status st = GRADCOMP_ERR_UNSUPPORTED;
	if (!on)
		return times_on(c, NULL, k, rows, columns, out, err);
	uint32_t patterns = registry_patterns(k->plugins[0], k->plugins[1]);
	const struct gradcomp_collective_v1 *over = k->plugins[1]->collective;
	if (gpu_mode_of(c->job->config, of, patterns, over, hierarchical_possible(of, patterns, over)) == GPU_ON_DEVICE)
		st = times_on(c, on, k, rows, columns, out, err);
	if (st != GRADCOMP_ERR_UNSUPPORTED)
		return st;
	st = times_on(c, NULL, k, rows, columns, out, err);
	if (!st)
		st = tuner_gpu_copies(c, rows * columns * sizeof(float), &down, &up, err);
	out[0] += down;
	out[1] += up;
	return st;
}

static linear through(double x0, double y0, double x1, double y1)
{
	double b = x1 > x0 ? (y1 - y0) / (x1 - x0) : y0 / x0;
	if (b < 0)
		b = y1 / x1;
	double a = y0 - b * x0;
	return (linear){a > 0 ? a : 0, b};
}

/* Asks what each tensor would send; a code as many bytes as it may have. */
static gradcomp_status loads(tuner *c, candidate *k, gradcomp_error *err)
{
	const struct gradcomp_compressor_v1 *of = k->plugins[0]->compressor;
	gradcomp_layout layout = c->layout;
	void *instance = NULL;
	pthread_mutex_lock(&c->lock);
	uint64_t step = c->steps + LATER;
	pthread_mutex_unlock(&c->lock);
	layout.patterns = registry_patterns(k->plugins[0], k->plugins[1]);
	k->load = calloc(c->ntensors, sizeof *k->load);
	gradcomp_status st = k->load ? of->create(&c->job->host, k->specs[0]->values, &layout, &instance, err)
	                             : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", c->ntensors);
	for (uint32_t i = 0; !st && i < c->ntensors; i++) {
		const gradcomp_tensor *t = &c->layout.tensors[i];
		const gradcomp_bucket b = {
			.struct_size = sizeof b, .first = i, .ntensors = 1, .offset = t->offset, .numel = t->numel};
		gradcomp_plan plan = {.struct_size = sizeof plan};
		st = of->plan(instance, &b, step, &plan, err);
		if (!st)
			st = task_list_check_plan(of, layout.patterns, t->numel, &plan, err);
		for (uint32_t r = 0; !st && r < plan.nrounds; r++) {
			const gradcomp_round *rd = &plan.rounds[r];
			k->load[i].bytes[rd->pattern] +=
				rd->pattern == GRADCOMP_CODED
					? (double)of->code_bound(instance, PIECE) / PIECE * (double)rd->count
					: (double)round_bytes(rd);
			k->load[i].exchanges = plan.nrounds;
		}
	}
	if (instance)
		of->destroy(instance);
	return st;
}

/* The largest tensor as a matrix, of at most MOST numbers. */
static void shape(const tuner *c, uint64_t *rows, uint64_t *columns)
{
	const gradcomp_tensor *t = c->layout.tensors;
	for (uint32_t i = 1; i < c->ntensors; i++)
		if (c->layout.tensors[i].numel > t->numel)
			t = &c->layout.tensors[i];
	*rows = t->ndim > 1 && t->numel ? t->dims[0] : t->numel >= 64 ? 64 : 1;
	*columns = t->numel / *rows ? t->numel / *rows : 1;
	while (*rows > 1 && *rows * *columns > MOST)
		*rows /= 2;
	*columns = *columns < MOST ? *columns : MOST;
}

gradcomp_status tuner_measure_cost(tuner *c, candidate *k, gradcomp_error *err)
{
	uint64_t rows, columns, fewer;
	double large[2] = {0}, small[2] = {0};
	shape(c, &rows, &columns);
	fewer = rows >= FEWER ? rows / FEWER : 1;
	gradcomp_status st = times(c, k, fewer, columns, small, err);
	if (!st)
		st = times(c, k, rows, columns, large, err);
	if (!st) {
		double x0 = (double)(fewer * columns), x1 = (double)(rows * columns);
		k->cost.encode = through(x0, small[0], x1, large[0]);
		k->cost.decode = through(x0, small[1], x1, large[1]);
	}
	return st || c->group->me ? st : loads(c, k, err);
}
