/* Lines through measurements, some of which were disturbed. Any thread. */
#ifndef BASE_FIT_H
#define BASE_FIT_H

#include <stddef.h>

/* a + b x, in seconds most often. */
typedef struct linear {
	double a, b;
} linear;

static inline double linear_at(const linear *l, double x)
{
	return l->a + l->b * x;
}

/* Sorts v; the mean of the middle two of an even number, 0 of none. */
double fit_median(double *v, size_t n);
/* The half of what lies between the first and the last quarter; v is sorted. */
double fit_spread(const double *v, size_t n);

/* It took y to do x, in u pieces. */
typedef struct fit_point {
	double u, x, y;
} fit_point;

/* Fits y = a u + b x with a, b >= 0, by least squares of relative errors, in which a point that lies off counts for
 * less the further off it lies (Huber's weights, reweighted until they stay). Of points of one size only, all is
 * put down to x, where there is any. Returns the median relative error; negative when no point has a positive y. */
double fit_line(const fit_point *p, size_t n, double *a, double *b);

#endif
