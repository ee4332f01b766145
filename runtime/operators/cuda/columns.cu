/* Columns of matrices brought to a length: a block has eight columns of a matrix, sixty-four rows at a time. */
#include "operators/cuda/batch.h"

enum { LANES = 64, TOGETHER = 8, COLUMN_THREADS = LANES * TOGETHER, ROWS_AT_ONCE = 4 };

static __global__ void __launch_bounds__(COLUMN_THREADS)
	columns_kernel(matrices<1> all, size_t n, size_t r, double length)
{
	SHARED(double, room, COLUMN_THREADS);
	const unsigned groups = unsigned((r + TOGETHER - 1) / TOGETHER), c = threadIdx.x % TOGETHER,
		       l = threadIdx.x / TOGETHER;
	const size_t column = size_t(blockIdx.x % groups) * TOGETHER + c, end = column < r ? n : 0;
	float *A = all.at[0][blockIdx.x / groups] + column;
	double s = 0;
	for (size_t i = l; i < end; i += LANES * ROWS_AT_ONCE) {
		float v[ROWS_AT_ONCE];
#pragma unroll
		for (unsigned u = 0; u < ROWS_AT_ONCE; u++)
			v[u] = i + u * LANES < end ? A[(i + u * LANES) * r] : 0;
#pragma unroll
		for (unsigned u = 0; u < ROWS_AT_ONCE; u++)
			s += double(v[u]) * v[u];
	}
	room[threadIdx.x] = s;
	for (unsigned half = LANES / 2; half; half /= 2) {
		__syncthreads();
		if (l < half)
			room[threadIdx.x] += room[threadIdx.x + half * TOGETHER];
	}
	__syncthreads();
	const double left = room[c] > 0 ? length / sqrt(room[c]) : 0;
	for (size_t i = l; i < end; i += LANES)
		A[i * r] = float(A[i * r] * left);
}

extern "C" void normalise_columns_batch_cuda(void *queue, float *const *A, size_t count, size_t n, size_t r,
                                             float length)
{
	const size_t groups = (r + TOGETHER - 1) / TOGETHER;
	if (!n || !r)
		return;
	in_parts<1>({A}, count, [=](const matrices<1> &part, size_t, unsigned some) {
		launch(columns_kernel, unsigned(some * groups), COLUMN_THREADS, 0, queue, part, n, r, double(length));
	});
}
