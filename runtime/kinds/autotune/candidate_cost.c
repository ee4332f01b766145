/* Times a candidate's work, without the others: one matrix of the model's sizes goes through it, at two sizes, on
 * the thread that has nothing else to do. Some milliseconds a candidate; done only where something is exposed. On
 * rank 0 also what it would send. */
#include "kinds/autotune/tuner_gpu.h"
#include "cost/local_cost.h"
#include "step/gpu/gpu.h"
#include "step/levels/hierarchical.h"

#include "base/error.h"
#include "plugin/compat.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
	MOST = 1 << 20, /* numbers timed: more than the second-level cache holds */
	FEWER = 8,      /* times fewer, the second size */
	REPEAT = 3,
	RANKS = 2,      /* whose payloads are decoded */
	LATER = 1000000 /* a step past every warm-up */
};

/* The least of some steps: what others do on this core is not the candidate's. */
static gradcomp_status times_on(const tuner *c, const local_device *on, const candidate *k, uint64_t rows,
                                uint64_t columns, double out[2], gradcomp_error *err)
{
	const uint32_t patterns = compat_patterns(k->plugins[0], k->plugins[1]);
	local_cost l;
	gradcomp_status st = local_cost_open(&l, on ? on->host : &c->job->host, on, k->plugins[0]->compressor,
	                                     k->specs[0]->values, rows, columns, patterns, RANKS, err);
	if (st)
		return st;
	for (int i = 0; !st && i < REPEAT; i++) {
		st = local_cost_step(&l, NULL, err);
		out[0] = !i || l.encode < out[0] ? l.encode : out[0];
		out[1] = !i || l.decode < out[1] ? l.decode : out[1];
	}
	/* A gathered payload comes from all ranks. */
	if (!st && l.plan.rounds[0].pattern == GRADCOMP_GATHERED)
		out[1] *= (double)c->group->nranks / RANKS;
	else if (!st && l.plan.rounds[0].pattern == GRADCOMP_MERGED)
		out[1] *= log2(c->group->nranks);
	local_cost_close(&l);
	return st;
}

/* Where its reducer would compute: with gradients on a device there, if it can; else what it is given comes
 * to the host, and its averages go back. */
static gradcomp_status times(const tuner *c, const candidate *k, uint64_t rows, uint64_t columns, double out[2],
                             gradcomp_error *err)
{
	const local_device *on = tuner_gpu_bench_of(c);
	const struct gradcomp_compressor_v1 *of = k->plugins[0]->compressor;
	double down = 0, up = 0;
	gradcomp_status st = GRADCOMP_ERR_UNSUPPORTED;
	if (!on)
		return times_on(c, NULL, k, rows, columns, out, err);
	uint32_t patterns = compat_patterns(k->plugins[0], k->plugins[1]);
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
	layout.patterns = compat_patterns(k->plugins[0], k->plugins[1]);
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
			k->load[i].bytes[rd->pattern] += rd->pattern == GRADCOMP_CODED
			                                         ? (double)of->code_bound(instance, LOCAL_PIECE) /
			                                                   LOCAL_PIECE * (double)rd->count
			                                         : (double)task_round_bytes(rd);
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

gradcomp_status candidate_cost_measure(tuner *c, candidate *k, gradcomp_error *err)
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
