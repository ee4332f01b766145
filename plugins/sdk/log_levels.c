#include "gradcomp/sdk/log_levels.h"

/* x^n */
static double power(double x, uint32_t n)
{
	double y = 1;
	for (uint32_t i = 0; i < n; i++)
		y *= x;
	return y;
}

/* Computes the n-th root of 1 + a, to the last bit or two, by halving: no C library promises the bits of pow(). */
static double root(double a, uint32_t n)
{
	double low = 1, high = 1 + a;
	for (int i = 0; i < 100; i++) {
		double middle = low + (high - low) / 2;
		if (power(middle, n) <= 1 + a)
			low = middle;
		else
			high = middle;
	}
	return low;
}

void sdk_log_levels_make(gradcomp_levels *l, const gradcomp_quantiser *q, double alpha)
{
	double r = root(alpha, q->levels), y = 1;
	*l = (gradcomp_levels){.struct_size = sizeof *l, .bits = q->bits, .levels = q->levels, .block = q->block};
	for (uint32_t c = 1; c < l->levels; c++) {
		y *= r;
		l->value[c] = (float)((y - 1) / alpha);
	}
	l->value[l->levels] = 1;
	for (uint32_t c = 1; c <= l->levels; c++)
		l->edge[c] = (float)(((double)l->value[c - 1] + l->value[c]) / 2);
}
