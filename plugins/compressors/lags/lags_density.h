/* How much may be sent of a layer without anybody waiting for it (Shi, Tang, Wang, Zhao,
 * Chu: Layer-wise Adaptive Gradient Sparsification, ECAI 2020): the smallest
 * compression c with
 *
 *     t_comm(c) + t_select <= t_backward of the next layer,   1 <= c <= max_ratio
 *
 * where t_comm = latency + per_byte * bytes. Functions of their arguments alone. */
#ifndef PLUGINS_COMPRESSORS_LAGS_LAGS_DENSITY_H
#define PLUGINS_COMPRESSORS_LAGS_LAGS_DENSITY_H

#include <stddef.h>

/* Seconds. */
typedef struct lags_times {
	double latency, per_byte; /* an exchange's, by bytes of a rank's payload */
	double per_number;        /* seconds of choosing from so many numbers */
} lags_times;

/* The density 1/c for a layer of d numbers, when a number that is sent takes `pair`
 * bytes and the next layer `backward` seconds. What is not known or no number
 * counts as no time to hide behind. */
static inline double lags_density(const lags_times *t, double d, double pair, double backward, double max_ratio)
{
	double left = backward - t->latency - t->per_number * d, all = t->per_byte * pair * d;
	double least = 1 / max_ratio;
	if (!(left > 0) || !(all >= 0))
		return least;
	return left >= all ? 1 : left > least * all ? left / all : least;
}

/* latency and per_byte by least squares of n pairs; both at least 0. Of pairs of one
 * size only, all time is put down to the bytes. */
static inline void lags_fit(lags_times *t, const double *bytes, const double *seconds, size_t n)
{
	double x = 0, y = 0, xx = 0, xy = 0, count = (double)n;
	for (size_t i = 0; i < n; i++) {
		x += bytes[i];
		y += seconds[i];
	}
	x /= n ? count : 1, y /= n ? count : 1;
	for (size_t i = 0; i < n; i++) {
		xx += (bytes[i] - x) * (bytes[i] - x);
		xy += (bytes[i] - x) * (seconds[i] - y);
	}
	t->per_byte = xx > 0 ? xy / xx : x > 0 ? y / x : 0;
	if (!(t->per_byte > 0))
		t->per_byte = 0;
	t->latency = y - t->per_byte * x;
	if (t->latency >= 0)
		return;
	/* A line through the origin. */
	xx += count * x * x, xy += count * x * y;
	t->latency = 0;
	t->per_byte = xx > 0 && xy > 0 ? xy / xx : 0;
}

#endif
