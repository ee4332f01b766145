/* Numbers about a vector. Sums run in double, in an order fixed by n. */
#include "operators/cpu/four.h"
#include "operators/cpu/select.h"

enum { SUM_ABS, SUM_SQUARES };

/* No room is needed on this device. */
size_t KERNEL(sum_scratch)(size_t n)
{
	(void)n;
	return 0;
}

INLINE double sum_of(const float *x, size_t n, const int of)
{
	const v4i keep = (v4i){0} + 0x7fffffff;
	v4d s[8] = {{0}};
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		UNROLL
		for (size_t j = 0; j < 8; j++) {
			v4d v = WIDEN((v4f)((v4i)LOAD4(x + i + 4 * j) & keep));
			s[j] += of == SUM_SQUARES ? v * v : v;
		}
	}
	v4d t = ((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7]));
	double total = (t[0] + t[2]) + (t[1] + t[3]);
	for (; i < n; i++)
		total += of == SUM_ABS ? __builtin_fabs(x[i]) : (double)x[i] * x[i];
	return total;
}

void KERNEL(sum_abs)(void *queue, double *out, const float *x, size_t n, void *scratch)
{
	(void)queue;
	(void)scratch;
	*out = sum_of(x, n, SUM_ABS);
}

void KERNEL(sum_squares)(void *queue, double *out, const float *x, size_t n, void *scratch)
{
	(void)queue;
	(void)scratch;
	*out = sum_of(x, n, SUM_SQUARES);
}

void KERNEL(absmax)(void *queue, float *out, const float *x, size_t n, void *scratch)
{
	(void)queue;
	(void)scratch;
	v8i most[4] = {{0}};
	uint32_t key = 0;
	size_t i = 0;
	for (; i + 32 <= n; i += 32) {
		UNROLL
		for (size_t j = 0; j < 4; j++) {
			v8i v = (v8i)LOAD8(x + i + 8 * j) & 0x7fffffff;
			most[j] = LARGER8(most[j], v);
		}
	}
	for (int j = 0; j < 32; j++)
		key = (uint32_t)most[j / 8][j % 8] > key ? (uint32_t)most[j / 8][j % 8] : key;
	for (; i < n; i++)
		key = key_of(x[i]) > key ? key_of(x[i]) : key;
	*out = bits_float(key);
}

void KERNEL(moment)(void *queue, float *out, const double *sum, double n, double a, uint32_t kind)
{
	(void)queue;
	const double m = *sum / n, root = __builtin_sqrt(m);
	*out = (float)(kind == GRADCOMP_MEAN ? a * m : kind == GRADCOMP_ROOT ? a * root : a / root);
}
