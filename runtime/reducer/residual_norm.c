/* The share of a step that compression holds back: |e| / |u|, what stays in error
 * memory against what was to be sent. Read from a fixed run of numbers out of every
 * RESIDUAL_EVERY, u's while BEGIN has it in cache, e's in FINISH, and weighted by
 * what each run stands for. */
#include "reducer/reducer.h"

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
	uint64_t rest = n % RESIDUAL_EVERY, seen = n / RESIDUAL_EVERY * RESIDUAL_RUN + (rest < RESIDUAL_RUN ? rest : RESIDUAL_RUN);
	return seen ? (double)n / (double)seen : 0;
}

void residual_norm_tensor(gradcomp_reducer *r, uint32_t i, double e)
{
	uint64_t n = r->tensors[i].numel;
	double u = r->held[i].u;
	if (!isfinite(u)) /* a compressor that passes NaN on */
		return;
	r->held[i].steps++;
	r->held[i].shares += u > 0 ? sqrt(e / u) : 0;
	r->step_e += e * weight(n);
	r->step_u += u * weight(n);
}

void residual_norm_bucket(gradcomp_reducer *r, const bucket *b)
{
	for (uint32_t i = b->pub.first; r->memory && !b->bad && i < b->pub.first + b->pub.ntensors; i++)
		residual_norm_tensor(r, i, of_tensor(r->memory + r->tensors[i].offset, r->tensors[i].numel));
}

void residual_norm_step(gradcomp_reducer *r)
{
	gradcomp_reducer_stats *s = &r->stats;
	if (r->memory && !r->step_bad) {
		s->error_last = r->step_u > 0 ? sqrt(r->step_e / r->step_u) : 0;
		s->error_mean += (s->error_last - s->error_mean) / (double)++s->error_steps;
	}
	r->step_e = r->step_u = 0;
}
