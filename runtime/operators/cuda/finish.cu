/* The last pass of a low-rank step: e = x - p Elocal^T, x = p Q^T. A thread has one
 * column, with its rows of Elocal and Q in registers, and runs down some rows of X.
 * The second product is REPLICATED: a multiplication and an addition a term, columns
 * ascending. */
#include "operators/cuda/batch.h"

enum { ROWS = 64 };

template <int R, bool ERROR>
static __global__ void __launch_bounds__(THREADS) finish_kernel(matrices<5> all, size_t n, size_t m, unsigned r)
{
	SHARED(float, p, ROWS *R);
	float *X = all.at[0][blockIdx.z], *E = all.at[1][blockIdx.z];
	const float *P = all.at[2][blockIdx.z], *L = all.at[3][blockIdx.z], *Q = all.at[4][blockIdx.z];
	const size_t column = size_t(blockIdx.x) * blockDim.x + threadIdx.x;
	float q[R], l[R];
#pragma unroll
	for (int c = 0; c < R; c++) {
		const bool there = column < m && unsigned(c) < r;
		q[c] = there ? Q[column * r + c] : 0;
		l[c] = ERROR && there ? L[column * r + c] : 0;
	}
	for (size_t row = size_t(blockIdx.y) * ROWS; row < n; row += size_t(gridDim.y) * ROWS) {
		const unsigned rows = n - row < ROWS ? unsigned(n - row) : unsigned(ROWS);
		__syncthreads();
		for (unsigned e = threadIdx.x; e < rows * R; e += blockDim.x)
			p[e] = e % R < r ? P[(row + e / R) * r + e % R] : 0;
		__syncthreads();
		if (column >= m)
			continue;
#pragma unroll 4
		for (unsigned i = 0; i < rows; i++) {
			const size_t at = (row + i) * m + column;
			float s = p[i * R] * q[0];
#pragma unroll
			for (int c = 1; c < R; c++)
				s = unsigned(c) < r ? s + p[i * R + c] * q[c] : s;
			if (ERROR) {
				float left = X[at];
#pragma unroll
				for (int c = 0; c < R; c++)
					left = __fmaf_rn(-p[i * R + c], l[c], left);
				E[at] = left;
			}
			X[at] = s;
		}
	}
}

template <int R>
static void finish(void *queue, const matrices<5> &part, unsigned some, bool error, size_t n, size_t m, size_t r)
{
	const unsigned threads = m >= THREADS ? unsigned(THREADS) : unsigned((m + WARP - 1) / WARP * WARP);
	const dim3 blocks(unsigned((m + threads - 1) / threads), blocks_for(n, ROWS, 65535), some);
	if (error)
		launch(finish_kernel<R, true>, blocks, threads, 0, queue, part, n, m, unsigned(r));
	else
		launch(finish_kernel<R, false>, blocks, threads, 0, queue, part, n, m, unsigned(r));
}

extern "C" void low_rank_finish_batch_cuda(void *queue, float *const *X, float *const *E, const float *const *P,
                                           const float *const *Elocal, const float *const *Q, size_t count, size_t n,
                                           size_t m, size_t r)
{
	const float *const *const from[] = {X, E, P, Elocal, Q};
	if (!n || !m || r > 64)
		return;
	for (size_t i = 0; !r && i < count; i++) {
		if (E)
			device_copy(queue, E[i], X[i], n * m * sizeof(float));
		device_zero(queue, X[i], n * m * sizeof(float));
	}
	if (!r)
		return;
	in_parts(from, count, [=](const matrices<5> &part, size_t, unsigned some) {
#define CALL(R) finish<R>(queue, part, some, E != nullptr, n, m, r)
		WITH_RANK(r, CALL)
#undef CALL
	});
}
