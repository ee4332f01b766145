/* Columns of matrices brought to a length. */
#include "operators/cpu/kernels.h"

enum { ROWS_APART = 64, COLUMNS_AT_ONCE = 8 }; /* rows apart, columns at a time */

static void normalise_columns(float *A, size_t n, size_t r, size_t columns, double length)
{
	double squares[ROWS_APART][COLUMNS_AT_ONCE] = {{0}}, left[COLUMNS_AT_ONCE];
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < columns; j++)
			squares[i % ROWS_APART][j] += (double)A[i * r + j] * A[i * r + j];
	for (size_t half = ROWS_APART / 2; half; half /= 2)
		for (size_t l = 0; l < half; l++)
			for (size_t j = 0; j < columns; j++)
				squares[l][j] += squares[l + half][j];
	for (size_t j = 0; j < columns; j++)
		left[j] = squares[0][j] > 0 ? length / __builtin_sqrt(squares[0][j]) : 0;
	for (size_t i = 0; i < n; i++)
		for (size_t j = 0; j < columns; j++)
			A[i * r + j] = (float)(A[i * r + j] * left[j]);
}

void KERNEL(normalise_columns_batch)(void *queue, float *const *A, size_t count, size_t n, size_t r, float length)
{
	(void)queue;
	for (size_t i = 0; i < count; i++)
		for (size_t j = 0; j < r; j += COLUMNS_AT_ONCE)
			normalise_columns(A[i] + j, n, r, r - j < COLUMNS_AT_ONCE ? r - j : COLUMNS_AT_ONCE, length);
}
