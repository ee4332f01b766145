/* The quantisers share this: where steps and codes are in memory. */
#ifndef OPERATORS_CPU_QUANTISE_H
#define OPERATORS_CPU_QUANTISE_H

#include "operators/operator_threads.h"
#include "operators/cpu/half.h"
#include "operators/cpu/lanes.h"

/* Codes are made and read in groups of this many; blocks are multiples of it. */
enum { QUANTISE_GROUP = 32 };

/* Bytes of the steps alone, and of n codes. */
INLINE size_t quantised_steps(const gradcomp_quantiser *q, size_t n)
{
	return q->norm == GRADCOMP_NORM_GIVEN ? 0 : (n + q->block - 1) / q->block * sizeof(float);
}

INLINE size_t quantised_codes(size_t n, unsigned bits)
{
	return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

/* Numbers a part for a thread: whole blocks. */
INLINE size_t quantised_part(const gradcomp_quantiser *q)
{
	return OPERATOR_PART / q->block ? OPERATOR_PART / q->block * q->block : q->block;
}

INLINE float load_float(const uint8_t *p)
{
	float f;
	memcpy(&f, p, sizeof f);
	return f;
}

/* dequantise_add(), and whether quantised_check() finds something, of steps and codes that do not stand together. */
void KERNEL(quantised_add)(float *y, float a, const uint8_t *steps, const uint8_t *codes, size_t n,
                           const gradcomp_quantiser *q);
int KERNEL(quantised_wrong)(const uint8_t *steps, size_t nsteps, const uint8_t *codes, size_t n,
                            const gradcomp_quantiser *q);
/* float8_add() of a times what scales and codes say, and whether it would find a fault; power_add() likewise. */
void KERNEL(float8_values_add)(float *y, float a, const uint8_t *scales, const uint8_t *codes, size_t n,
                               const gradcomp_coding *c);
int KERNEL(float8_wrong)(const uint8_t *scales, const uint8_t *codes, size_t n, const gradcomp_coding *c);
void KERNEL(power_values_add)(float *y, float a, const uint8_t *exponents, const uint8_t *signs, size_t n);
/* y[i] += a times number i of F16 or BF16. */
void KERNEL(float16_add)(float *y, float a, const void *in, size_t n, gradcomp_dtype type);
/* levels_add() of such. */
void KERNEL(levels_values_add)(float *y, float a, const uint8_t *tops, const uint8_t *codes, size_t n,
                               const gradcomp_levels *l);

#endif
