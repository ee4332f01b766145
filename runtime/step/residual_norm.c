#include "step/residual_norm.h"

#include "step/bucket.h"

#include <math.h>

static double run_squares(const float *x, const float *more, uint64_t n)
{
	/* Several sums, so that one addition does not wait for the last. */
	double sum[8] = {0};
	uint64_t i = 0;
	for (; i + 8 <= n; i += 8)
		for (int k = 0; k < 8; k++) {
			double v = more ? (double)x[i + k] + more[i + k] : x[i + k];
			sum[k] += v * v;
		}
	for (; i < n; i++) {
		double v = more ? (double)x[i] + more[i] : x[i];
		sum[0] += v * v;
	}
	return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

double residual_norm_run(const float *x, const float *more, uint64_t at, uint64_t n)
{
	if (at % RESIDUAL_EVERY)
		return 0;
	return run_squares(x + at, more ? more + at : NULL, n - at < RESIDUAL_RUN ? n - at : RESIDUAL_RUN);
}

static double of_tensor(const float *e, uint64_t n)
{
	double sum = 0;
	for (uint64_t at = 0; at < n; at += RESIDUAL_EVERY)
		sum += residual_norm_run(e, NULL, at, n);
	return sum;
}

static double weight(uint64_t n)
{
	uint64_t rest = n % RESIDUAL_EVERY,
		 seen = n / RESIDUAL_EVERY * RESIDUAL_RUN + (rest < RESIDUAL_RUN ? rest : RESIDUAL_RUN);
	return seen ? (double)n / (double)seen : 0;
}

void residual_norm_tensor(engine *eng, uint32_t i, double e)
{
	uint64_t n = eng->layout.tensors[i].numel;
	double u = eng->meter.norms[i].u;
	if (!isfinite(u)) /* a compressor that passes NaN on */
		return;
	eng->meter.norms[i].steps++;
	eng->meter.norms[i].shares += u > 0 ? sqrt(e / u) : 0;
	eng->meter.e += e * weight(n);
	eng->meter.u += u * weight(n);
}

void residual_norm_bucket(engine *eng, const bucket *b)
{
	for (uint32_t i = 0; !b->bad && i < b->pub.ntensors; i++) {
		const float *e = bucket_held_back(eng, b, i);
		if (e)
			residual_norm_tensor(eng, b->pub.first + i,
			                     of_tensor(e, eng->layout.tensors[b->pub.first + i].numel));
	}
}

static void end_step(engine *eng, bool bad)
{
	gradcomp_reducer_stats *s = &eng->stats;
	if (engine_held_back(eng) < engine_arrays_count(eng) && !bad) {
		s->error_last = eng->meter.u > 0 ? sqrt(eng->meter.e / eng->meter.u) : 0;
		s->error_mean += (s->error_last - s->error_mean) / (double)++s->error_steps;
	}
	eng->meter.e = eng->meter.u = 0;
}

/* The mean of the error is that of the rank's first shards. */
void residual_norm_step(engine *eng)
{
	const engine *first = eng->list.shards;
	if (!first) {
		end_step(eng, eng->step_bad);
		return;
	}
	for (engine *in = eng->list.shards; in; in = in->next)
		end_step(in, eng->step_bad);
	eng->stats.error_steps = first->stats.error_steps;
	eng->stats.error_mean = first->stats.error_mean;
	eng->stats.error_last = first->stats.error_last;
}
