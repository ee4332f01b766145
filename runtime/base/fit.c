#include "base/fit.h"

#include <math.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

double fit_median(double *v, size_t n)
{
	qsort(v, n, sizeof *v, ascending);
	return n ? (v[(n - 1) / 2] + v[n / 2]) / 2 : 0;
}

double fit_spread(const double *v, size_t n)
{
	return n ? (v[n - 1 - n / 4] - v[n / 4]) / 2 : 0;
}

enum { ROUNDS = 50 };

typedef struct sums {
	double uu, ux, xx, uy, xy;
} sums;

/* Both at least 0: where the best line has a negative part, the best one without it. */
static void solve(const sums *s, double *a, double *b)
{
	double det = s->uu * s->xx - s->ux * s->ux;
	double only_a = s->uu > 0 ? s->uy / s->uu : 0, only_b = s->xx > 0 ? s->xy / s->xx : 0;
	if (det > 1e-9 * s->uu * s->xx) {
		*a = (s->uy * s->xx - s->xy * s->ux) / det;
		*b = (s->xy * s->uu - s->uy * s->ux) / det;
		if (*a >= 0 && *b >= 0)
			return;
		if (*b < 0) {
			*a = only_a;
			*b = 0;
			return;
		}
	}
	*a = s->xx > 0 ? 0 : only_a;
	*b = only_b;
}

static double relative(const fit_point *p, double a, double b)
{
	double f = a * p->u + b * p->x;
	return f > 0 ? (p->y - f) / f : 0;
}

/* Finds the median of |error|, without a sorted copy of all: by halving. */
static double middle_error(const fit_point *p, size_t n, double a, double b)
{
	double low = 0, high = 0;
	for (size_t i = 0; i < n; i++)
		high = fmax(high, fabs(relative(&p[i], a, b)));
	for (int k = 0; k < 60 && high - low > 1e-6 * high; k++) {
		double at = (low + high) / 2;
		size_t below = 0;
		for (size_t i = 0; i < n; i++)
			below += fabs(relative(&p[i], a, b)) <= at;
		if (2 * below >= n)
			high = at;
		else
			low = at;
	}
	return high;
}

double fit_line(const fit_point *p, size_t n, double *a, double *b)
{
	size_t usable = 0;
	double error = -1;
	for (size_t i = 0; i < n; i++)
		usable += p[i].y > 0;
	*a = *b = 0;
	if (!usable)
		return -1;
	for (int round = 0; round < ROUNDS; round++) {
		double was_a = *a, was_b = *b;
		sums s = {0};
		for (size_t i = 0; i < n; i++) {
			/* Errors are relative to the line; before there is one, to the point itself, which
			 * keeps what took far too long from counting. */
			double f = round ? *a * p[i].u + *b * p[i].x : p[i].y;
			double off = round ? fabs(relative(&p[i], *a, *b)) : 0, near = 1.5 * 1.4826 * error, w;
			if (!(f > 0) || !(p[i].y > 0))
				continue;
			w = 1 / (f * f);
			if (off > 0 && off > near)
				w *= near / off;
			s.uu += w * p[i].u * p[i].u;
			s.ux += w * p[i].u * p[i].x;
			s.xx += w * p[i].x * p[i].x;
			s.uy += w * p[i].u * p[i].y;
			s.xy += w * p[i].x * p[i].y;
		}
		solve(&s, a, b);
		error = middle_error(p, n, *a, *b);
		if (round && fabs(*a - was_a) <= 1e-6 * fabs(*a) && fabs(*b - was_b) <= 1e-6 * fabs(*b))
			break;
	}
	return error;
}
