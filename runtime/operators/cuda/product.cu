/* Products of a large matrix with a thin one; each reads the large one once. A term
 * is one fused multiply-add. Which kernel works, and so the order of a sum, depends on
 * the shape alone. */
#include "operators/cuda/batch.h"
#include "operators/cuda/each.h"

/* Adds by tiles, for ranks where arithmetic costs more than memory.
 *
 * A block has TILE rows, or columns, of M and all R columns of the thin matrix. STEP terms
 * of these are in shared memory while the next are on their way to registers. A thread has
 * SIDE x SIDE sums, for which it reads two packs a term; some groups of threads share the
 * terms of a step, and the groups' sums are added in order. */

enum { TILE = 32, STEP = 64, SIDE = 4, WARPS = THREADS / WARP };

template <int R> struct tiling {
	enum { ACROSS = R / SIDE, GROUP = ACROSS * TILE / SIDE, GROUPS = THREADS / GROUP, SHARE = STEP / GROUPS };
	enum { LD = TILE + SIDE, LARGE = TILE * STEP / THREADS, THIN = STEP * R / THREADS, SIZE = STEP * (LD + R) };
	static_assert(GROUPS * TILE * R <= SIZE, "room for the groups' sums");
};

/* Number u of a thread's elements of a step: term k, row i of P; eight terms of four rows a
 * warp, whose places in the tile are in different banks. */
struct along_rows {
	const float *M;
	size_t n, m, first;
	__device__ unsigned k(int) const { return warp_id() * 8 + lane_id() % 8; }
	__device__ unsigned i(int u) const { return u * 4 + lane_id() / 8; }
	__device__ float load(size_t term, unsigned row) const
	{
		return first + row < n ? M[(first + row) * m + term] : 0;
	}
};
/* Term k is a row of M, i a column. */
struct down_columns {
	const float *M;
	size_t n, m, first;
	__device__ unsigned k(int u) const { return u * WARPS + warp_id(); }
	__device__ unsigned i(int) const { return lane_id(); }
	__device__ float load(size_t term, unsigned column) const
	{
		return first + column < m ? M[term * m + first + column] : 0;
	}
};

template <int R, class WAY> struct step_of {
	typedef tiling<R> T;
	float large[T::LARGE], thin[T::THIN];

	__device__ void load(const WAY &way, const float *B, unsigned r, size_t from, size_t to)
	{
#pragma unroll
		for (int u = 0; u < T::LARGE; u++)
			large[u] = from + way.k(u) < to ? way.load(from + way.k(u), way.i(u)) : 0;
#pragma unroll
		for (int u = 0; u < T::THIN; u++) {
			const unsigned e = u * THREADS + threadIdx.x, k = e / R, c = e % R;
			thin[u] = from + k < to && c < r ? B[(from + k) * r + c] : 0;
		}
	}
	__device__ void store(const WAY &way, float *A, float *B) const
	{
#pragma unroll
		for (int u = 0; u < T::LARGE; u++)
			A[way.k(u) * T::LD + way.i(u)] = large[u];
#pragma unroll
		for (int u = 0; u < T::THIN; u++)
			B[u * THREADS + threadIdx.x] = thin[u];
	}
};

/* Leaves the sums of the terms from..to in memory[row * R + column]. */
template <int R, class WAY>
INLINE void tiled_sum(float *memory, const WAY &way, const float *thin, unsigned r, size_t from, size_t to)
{
	typedef tiling<R> T;
	float *const A = memory, *const B = memory + STEP * T::LD;
	const unsigned group = threadIdx.x / T::GROUP, me = threadIdx.x % T::GROUP;
	const unsigned row = me / T::ACROSS * SIDE, column = me % T::ACROSS * SIDE;
	float acc[SIDE][SIDE] = {};
	step_of<R, WAY> step;
	step.load(way, thin, r, from, to);
	for (size_t term = from; term < to; term += STEP) {
		__syncthreads();
		step.store(way, A, B);
		__syncthreads();
		if (to - term > STEP)
			step.load(way, thin, r, term + STEP, to);
#pragma unroll 8
		for (unsigned k = group * T::SHARE; k < (group + 1) * T::SHARE; k++) {
			const pack<float, SIDE> a = load_pack<float, SIDE>(A + row, k * T::LD);
			const pack<float, SIDE> b = load_pack<float, SIDE>(B + column, k * R);
#pragma unroll
			for (int i = 0; i < SIDE; i++)
#pragma unroll
				for (int j = 0; j < SIDE; j++)
					acc[i][j] = __fmaf_rn(a.at[i], b.at[j], acc[i][j]);
		}
	}
	__syncthreads();
#pragma unroll
	for (int i = 0; i < SIDE; i++)
#pragma unroll
		for (int j = 0; j < SIDE; j++)
			memory[(group * TILE + row + i) * R + column + j] = acc[i][j];
	__syncthreads();
	for (unsigned e = threadIdx.x; e < TILE * R; e += THREADS) {
		float s = memory[e];
#pragma unroll
		for (int g = 1; g < T::GROUPS; g++)
			s += memory[g * TILE * R + e];
		memory[e] = s;
	}
	__syncthreads();
}

/* From so many rows on there are blocks enough. */
enum { TILED_ROWS = 1024 };

template <int R>
static __global__ void __launch_bounds__(THREADS, 2) mq_tiled(matrices<3> all, size_t n, size_t m, unsigned r)
{
	SHARED(float, memory, tiling<R>::SIZE);
	float *P = all.at[0][blockIdx.y];
	const along_rows way = {all.at[1][blockIdx.y], n, m, size_t(blockIdx.x) * TILE};
	tiled_sum<R>(memory, way, all.at[2][blockIdx.y], r, 0, m);
	for (unsigned e = threadIdx.x; e < TILE * R; e += THREADS)
		if (way.first + e / R < n && e % R < r)
			P[(way.first + e / R) * r + e % R] = memory[e];
}

/*
 * A warp has ROWS rows of M and all R columns of Q, a tile of which is in shared
 * memory, transposed. Lanes run along the rows; a row's sum does not depend on how
 * many rows a warp has. */

enum { MQ_TILE = 4096 };

template <int R, int ROWS>
static __global__ void __launch_bounds__(THREADS) mq_kernel(matrices<3> all, size_t n, size_t m, unsigned r)
{
	enum { K = MQ_TILE / R < 1024 ? MQ_TILE / R : 1024, LD = K + 1 };
	SHARED(float, T, R *LD);
	float *P = all.at[0][blockIdx.y];
	const float *M = all.at[1][blockIdx.y], *Q = all.at[2][blockIdx.y];
	const size_t row = (size_t(blockIdx.x) * (THREADS / WARP) + warp_id()) * ROWS;
	float acc[ROWS][R];
#pragma unroll
	for (int i = 0; i < ROWS; i++)
#pragma unroll
		for (int c = 0; c < R; c++)
			acc[i][c] = 0;
	for (size_t k0 = 0; k0 < m; k0 += K) {
		const unsigned count = m - k0 < K ? unsigned(m - k0) : unsigned(K);
		__syncthreads();
		for (unsigned e = threadIdx.x; e < count * R; e += THREADS) {
			const unsigned k = e / R, c = e % R;
			T[c * LD + k] = c < r ? Q[(k0 + k) * r + c] : 0;
		}
		__syncthreads();
#pragma unroll 4
		for (unsigned k = lane_id(); k < count; k += WARP) {
			float a[ROWS];
#pragma unroll
			for (int i = 0; i < ROWS; i++)
				a[i] = row + i < n ? M[(row + i) * m + k0 + k] : 0;
#pragma unroll
			for (int c = 0; c < R; c++) {
				const float t = T[c * LD + k];
#pragma unroll
				for (int i = 0; i < ROWS; i++)
					acc[i][c] = __fmaf_rn(a[i], t, acc[i][c]);
			}
		}
	}
#pragma unroll
	for (int i = 0; i < ROWS; i++)
#pragma unroll
		for (int c = 0; c < R; c++) {
			const float s = warp_fold(acc[i][c], sum_of());
			if (!lane_id() && row + i < n && unsigned(c) < r)
				P[(row + i) * r + c] = s;
		}
}

template <int R> static void mq(void *queue, const matrices<3> &all, unsigned count, size_t n, size_t m, size_t r)
{
	constexpr int MANY = R <= 16 ? 4 : R == 32 ? 2 : 1;
	const size_t warps = THREADS / WARP, enough = 4096;
	if constexpr (R > 16)
		if (n >= TILED_ROWS) {
			launch(mq_tiled<R>, dim3(unsigned((n + TILE - 1) / TILE), count), THREADS, 0, queue, all, n, m,
			       unsigned(r));
			return;
		}
	if (MANY == 1 || n / MANY * count < enough)
		launch(mq_kernel<R, 1>, dim3(unsigned((n + warps - 1) / warps), count), THREADS, 0, queue, all, n, m,
		       unsigned(r));
	else
		launch(mq_kernel<R, MANY>, dim3(unsigned((n + warps * MANY - 1) / (warps * MANY)), count), THREADS, 0,
		       queue, all, n, m, unsigned(r));
}

extern "C" void product_mq_batch_cuda(void *queue, float *const *P, const float *const *M, const float *const *Q,
                                      size_t count, size_t n, size_t m, size_t r, void *)
{
	const float *const *const from[] = {P, M, Q};
	if (!n || !r || r > 64)
		return;
	in_parts(from, count, [=](const matrices<3> &part, size_t, unsigned some) {
#define CALL(R) mq<R>(queue, part, some, n, m, r)
		WITH_RANK(r, CALL)
#undef CALL
	});
}

/* Computes Q = M^T P.
 *
 * A block has a strip of columns of M. Rows come in chunks; of a chunk every warp sums
 * each eighth row, and the warps' sums are added in order, or a chunk is summed by tiles;
 * the chunks' sums are added in order. With
 * scratch memory each chunk has a block of its own, and a second kernel adds; without,
 * one block does all chunks of a strip. The bits are the same. */

enum { CHUNK = 256, PIECE = 64 };

/* The strip's sums over rows from..to, as sum[column * R + c]. */
template <int R, int COLUMNS>
INLINE void chunk_sum(float *sum, float *tile, const float *M, const float *P, size_t from, size_t to, size_t first,
                      size_t m, unsigned r)
{
	const unsigned w = warp_id(), l = lane_id(), warps = WARPS;
	float acc[COLUMNS][R];
#pragma unroll
	for (int j = 0; j < COLUMNS; j++)
#pragma unroll
		for (int c = 0; c < R; c++)
			acc[j][c] = 0;
	for (size_t row = from; row < to; row += PIECE) {
		const unsigned rows = to - row < PIECE ? unsigned(to - row) : unsigned(PIECE);
		__syncthreads();
		for (unsigned e = threadIdx.x; e < rows * R; e += THREADS)
			tile[e] = e % R < r ? P[(row + e / R) * r + e % R] : 0;
		__syncthreads();
#pragma unroll 4
		for (unsigned i = w; i < rows; i += warps) {
			float a[COLUMNS];
#pragma unroll
			for (int j = 0; j < COLUMNS; j++)
				a[j] = first + j * WARP + l < m ? M[(row + i) * m + first + j * WARP + l] : 0;
#pragma unroll
			for (int c = 0; c < R; c++) {
				const float p = tile[i * R + c];
#pragma unroll
				for (int j = 0; j < COLUMNS; j++)
					acc[j][c] = __fmaf_rn(a[j], p, acc[j][c]);
			}
		}
	}
	for (unsigned v = 0; v < warps; v++) {
		__syncthreads();
		if (v != w)
			continue;
#pragma unroll
		for (int j = 0; j < COLUMNS; j++)
#pragma unroll
			for (int c = 0; c < R; c++) {
				float *s = sum + (j * R + c) * WARP + l;
				*s = v ? *s + acc[j][c] : acc[j][c];
			}
	}
	__syncthreads();
}

/* Block x is (strip, chunk) and writes to the scratch memory when there is more than one
 * chunk; else it has all chunks of a strip. */
struct chunks_of_block {
	size_t strip;
	unsigned from, to;
	float *to_q;
};

INLINE chunks_of_block block_chunks(float *scratch, float *Q, size_t size, unsigned chunks)
{
	const unsigned mine = scratch ? blockIdx.x % chunks : 0;
	return chunks_of_block{blockIdx.x / (scratch ? chunks : 1), mine, scratch ? mine + 1 : chunks,
	                       scratch ? scratch + (size_t(blockIdx.y) * chunks + mine) * size : Q};
}

/* By tiles, where a strip is as wide as one. */
template <int R>
static __global__ void __launch_bounds__(THREADS, 2)
	mtp_tiled(matrices<3> all, float *scratch, size_t n, size_t m, unsigned r, unsigned chunks)
{
	SHARED(float, memory, tiling<R>::SIZE);
	SHARED(float, total, TILE *R);
	const chunks_of_block mine = block_chunks(scratch, all.at[0][blockIdx.y], m * r, chunks);
	const down_columns way = {all.at[1][blockIdx.y], n, m, mine.strip * TILE};
	for (unsigned chunk = mine.from; chunk < mine.to; chunk++) {
		const size_t row = size_t(chunk) * CHUNK, end = row + CHUNK < n ? row + CHUNK : n;
		tiled_sum<R>(memory, way, all.at[2][blockIdx.y], r, row, end);
		for (unsigned e = threadIdx.x; e < TILE * R; e += THREADS)
			total[e] = chunk > mine.from ? total[e] + memory[e] : memory[e];
	}
	for (unsigned e = threadIdx.x; e < TILE * R; e += THREADS)
		if (way.first + e / R < m && e % R < r)
			mine.to_q[(way.first + e / R) * r + e % R] = total[e];
}

template <int R, int COLUMNS>
static __global__ void __launch_bounds__(THREADS)
	mtp_kernel(matrices<3> all, float *scratch, size_t n, size_t m, unsigned r, unsigned chunks)
{
	enum { SIZE = COLUMNS * R * WARP };
	SHARED(float, tile, PIECE *R);
	SHARED(float, sum, SIZE);
	SHARED(float, total, SIZE);
	const float *M = all.at[1][blockIdx.y], *P = all.at[2][blockIdx.y];
	const chunks_of_block mine = block_chunks(scratch, all.at[0][blockIdx.y], m * r, chunks);
	const size_t first = mine.strip * COLUMNS * WARP;
	for (unsigned chunk = mine.from; chunk < mine.to; chunk++) {
		const size_t row = size_t(chunk) * CHUNK, end = row + CHUNK < n ? row + CHUNK : n;
		chunk_sum<R, COLUMNS>(sum, tile, M, P, row, end, first, m, r);
		for (unsigned e = threadIdx.x; e < SIZE; e += THREADS)
			total[e] = chunk > mine.from ? total[e] + sum[e] : sum[e];
	}
	__syncthreads();
	for (unsigned e = threadIdx.x; e < SIZE; e += THREADS) {
		const unsigned column = e / R, c = e % R;
		if (first + column < m && c < r)
			mine.to_q[(first + column) * r + c] = total[(column / WARP * R + c) * WARP + column % WARP];
	}
}

static __global__ void __launch_bounds__(THREADS)
	add_chunks(matrices<3> all, const float *scratch, size_t size, unsigned chunks)
{
	float *Q = all.at[0][blockIdx.y];
	const float *from = scratch + size_t(blockIdx.y) * chunks * size;
	for (size_t i = thread_id(); i < size; i += thread_count()) {
		float s = from[i];
		for (unsigned c = 1; c < chunks; c++)
			s += from[c * size + i];
		Q[i] = s;
	}
}

static unsigned chunks_of(size_t n)
{
	return n > CHUNK ? unsigned((n + CHUNK - 1) / CHUNK) : 1;
}

template <int R, int COLUMNS>
static void mtp(void *queue, const matrices<3> &part, unsigned some, float *scratch, size_t n, size_t m, size_t r)
{
	const unsigned chunks = chunks_of(n);
	const size_t strips = (m + COLUMNS * WARP - 1) / (COLUMNS * WARP);
	float *room = chunks > 1 ? scratch : nullptr;
	const dim3 blocks(unsigned(strips * (room ? chunks : 1)), some);
	if constexpr (R > 16)
		launch(mtp_tiled<R>, blocks, THREADS, 0, queue, part, room, n, m, unsigned(r), chunks);
	else
		launch(mtp_kernel<R, COLUMNS>, blocks, THREADS, 0, queue, part, room, n, m, unsigned(r), chunks);
	if (room)
		launch(add_chunks, dim3(blocks_for(m * r, THREADS, 4096), some), THREADS, 0, queue, part, room, m * r,
		       chunks);
}

extern "C" size_t product_scratch_cuda(size_t count, size_t n, size_t m, size_t r)
{
	const size_t at_once = count < BATCH ? count : size_t(BATCH);
	return chunks_of(n) > 1 ? (at_once * chunks_of(n) * m * r * sizeof(float) + 63) / 64 * 64 : 0;
}

extern "C" void product_mtp_batch_cuda(void *queue, float *const *Q, const float *const *M, const float *const *P,
                                       size_t count, size_t n, size_t m, size_t r, void *scratch)
{
	const float *const *const from[] = {Q, M, P};
	if (!m || !r || r > 64)
		return;
	in_parts(from, count, [=](const matrices<3> &part, size_t, unsigned some) {
		/* Wide strips where there are enough of them: columns do not know each other. */
		const bool wide = scratch && m >= 512;
#define CALL(R) \
	if (wide) \
		mtp<R, R <= 8 ? 4 : R == 16 ? 2 : 1>(queue, part, some, static_cast<float *>(scratch), n, m, r); \
	else \
		mtp<R, 1>(queue, part, some, static_cast<float *>(scratch), n, m, r)
		WITH_RANK(r, CALL)
#undef CALL
	});
}
