/* Cosine transforms of chunks, and their largest coefficients. A block has a chunk in shared memory, and
 * the basis of one side at a time, which it works out: from memory it would be as much again
 * as the chunk. */
#include "operators/cuda/cuda_select.h"

#undef INLINE
#define INLINE static inline __host__ __device__
#include "operators/cpu/dct.h"
#undef INLINE
#define INLINE static inline __device__

enum { SIDE = DCT_LONGEST, STRIDE = SIDE + 1, TILE = SIDE * STRIDE, MATRICES_AT_ONCE = 64 };
/* A warp has rows DOWN apart, and a lane of it columns WARP apart. */
enum { DOWN = SELECT_THREADS / WARP, ROWS_EACH = SIDE / DOWN, COLUMNS_EACH = SIDE / WARP };

struct cut_matrices {
	gradcomp_matrix at[MATRICES_AT_ONCE];
	uint64_t sent[MATRICES_AT_ONCE];  /* coefficients before */
	uint32_t first[MATRICES_AT_ONCE]; /* chunk */
	uint32_t count, chunk, k;
};

struct my_chunk {
	dct_chunk c;
	float *x;
	uint64_t m;
};

/* The chunk of this block; c.at is among all coefficients. */
INLINE my_chunk chunk_of(const cut_matrices &all)
{
	unsigned i = 0;
	for (unsigned j = 1; j < all.count; j++)
		i = all.first[j] <= blockIdx.x ? j : i;
	const gradcomp_matrix t = all.at[i];
	const dct_cut cut = dct_cut_of(t.n, t.m, all.chunk, all.k);
	my_chunk p;
	p.c = dct_chunk_at(&cut, t.n, t.m, all.k, blockIdx.x - all.first[i]);
	p.c.at += all.sent[i];
	p.x = t.x + p.c.row * t.m + p.c.column;
	p.m = t.m;
	return p;
}

/* B_n; before it nobody may be at the last one any more. */
INLINE void make_basis(float *basis, double *cosine, uint32_t n)
{
	const double length[2] = {sqrt(1.0 / n), sqrt(2.0 / n)};
	for (uint32_t t = threadIdx.x; t <= n; t += SELECT_THREADS)
		cosine[t] = dct_cosine(t, n);
	__syncthreads();
	for (uint32_t e = threadIdx.x; e < n * n; e += SELECT_THREADS)
		basis[e / n * STRIDE + e % n] = dct_basis(cosine, length, n, e / n, e % n);
	__syncthreads();
}

/* The sums over l < n of left(row, l) right(l, column) of this thread's rows and columns. */
template <class L, class R>
INLINE void product(float (&sum)[ROWS_EACH][COLUMNS_EACH], uint32_t rows, uint32_t n, const L &left, const R &right)
{
#pragma unroll
	for (int p = 0; p < ROWS_EACH; p++)
#pragma unroll
		for (int q = 0; q < COLUMNS_EACH; q++)
			sum[p][q] = 0;
	for (uint32_t l = 0; l < n; l++) {
		float r[COLUMNS_EACH];
#pragma unroll
		for (int q = 0; q < COLUMNS_EACH; q++)
			r[q] = right(l, lane_id() + q * WARP);
#pragma unroll
		for (int p = 0; p < ROWS_EACH; p++)
			if (warp_id() + p * DOWN < rows) {
				const float a = left(warp_id() + p * DOWN, l);
#pragma unroll
				for (int q = 0; q < COLUMNS_EACH; q++)
					sum[p][q] += a * r[q];
			}
	}
}

/* with(row, column, sum) of those that the chunk has. */
template <class F> INLINE void each_sum(const float (&sum)[ROWS_EACH][COLUMNS_EACH], const dct_chunk &c, const F &with)
{
#pragma unroll
	for (int p = 0; p < ROWS_EACH; p++)
#pragma unroll
		for (int q = 0; q < COLUMNS_EACH; q++) {
			const uint32_t i = warp_id() + p * DOWN, j = lane_id() + q * WARP;
			if (i < c.rows && j < c.columns)
				with(i, j, sum[p][q]);
		}
}

/* The two products of a chunk's rows with B_columns and of its columns with B_rows, or, back, with their transposes: the
 * sums of this thread. The chunk, in `tile`, is overwritten; so it may be again after a barrier. */
template <bool BACK>
INLINE void transform(float (&sum)[ROWS_EACH][COLUMNS_EACH], float *tile, float *basis, double *cosine,
                      const dct_chunk &c)
{
	const uint32_t rows = uint32_t(c.rows), columns = uint32_t(c.columns);
	const auto basis_at = [=](uint32_t l, uint32_t j) {
		return BACK ? basis[j * STRIDE + l] : basis[l * STRIDE + j];
	};
	make_basis(basis, cosine, columns);
	product(
		sum, rows, columns, [=](uint32_t i, uint32_t l) { return tile[i * STRIDE + l]; }, basis_at);
	__syncthreads();
	each_sum(sum, c, [=](uint32_t i, uint32_t j, float v) { tile[i * STRIDE + j] = v; });
	if (rows != columns)
		make_basis(basis, cosine, rows);
	else
		__syncthreads();
	product(
		sum, rows, rows, [=](uint32_t i, uint32_t l) { return basis_at(l, i); },
		[=](uint32_t l, uint32_t j) { return tile[l * STRIDE + j]; });
}

struct tie_cut {
	uint32_t key, ties;
};

/* The k-th largest key of n in shared memory, and how many that equal it are among the k. */
INLINE tie_cut cut_at(const float *x, uint32_t n, uint32_t k)
{
	enum { BINS = 256 };
	SHARED(uint32_t, count, BINS);
	SHARED(uint32_t, room, WARP);
	SHARED(uint32_t, found, 2);
	tie_cut c = {0, k};
	for (int shift = 24; k < n && shift >= 0; shift -= 8) {
		if (threadIdx.x < BINS)
			count[threadIdx.x] = 0;
		__syncthreads();
		for (uint32_t e = threadIdx.x; e < n; e += SELECT_THREADS) {
			const uint32_t key = key_of(x[e]);
			if (shift == 24 || key >> (shift + 8) == c.key)
				atomicAdd(&count[key >> shift & (BINS - 1)], 1u);
		}
		__syncthreads();
		/* From the highest bin down. */
		const uint32_t bin = BINS - 1 - threadIdx.x, mine = threadIdx.x < BINS ? count[bin] : 0;
		uint32_t upto = mine;
		for (unsigned d = 1; d < WARP; d *= 2) {
			const uint32_t before = __shfl_up_sync(ALL_LANES, upto, d);
			upto += lane_id() >= d ? before : 0;
		}
		if (lane_id() == WARP - 1)
			room[warp_id()] = upto;
		__syncthreads();
		for (unsigned w = 0; w < warp_id(); w++)
			upto += room[w];
		if (mine && upto - mine < c.ties && c.ties <= upto) {
			found[0] = bin;
			found[1] = c.ties - (upto - mine);
		}
		__syncthreads();
		c = tie_cut{c.key << 8 | found[0], found[1]};
	}
	return c;
}

static __global__ void __launch_bounds__(SELECT_THREADS) dct_topk_kernel(cut_matrices all, float *val, uint16_t *place)
{
	SHARED(float, tile, TILE);
	SHARED(float, basis, TILE);
	SHARED(double, cosine, SIDE + 1);
	const my_chunk p = chunk_of(all);
	const uint32_t rows = uint32_t(p.c.rows), columns = uint32_t(p.c.columns), n = rows * columns;
	float sum[ROWS_EACH][COLUMNS_EACH];
	for (uint32_t e = threadIdx.x; e < n; e += SELECT_THREADS) {
		const uint32_t i = e / columns, j = e % columns;
		float v = p.x[i * p.m + j];
		v = v < DCT_LIMIT ? v : DCT_LIMIT;
		tile[i * STRIDE + j] = v > -DCT_LIMIT ? v : -DCT_LIMIT;
	}
	transform<false>(sum, tile, basis, cosine, p.c);
	__syncthreads();
	each_sum(sum, p.c, [=](uint32_t i, uint32_t j, float v) { tile[i * columns + j] = v; });
	__syncthreads();
	const tie_cut cut = cut_at(tile, n, uint32_t(p.c.k));
	val += p.c.at;
	place += p.c.at;
	walk<true>(
		tile, 0, n, counts{0, 0},
		[=](uint32_t key) { return key > cut.key    ? ABOVE
		                           : key == cut.key ? MIDDLE
		                                            : LEFT_OUT; },
		[=](size_t i, int kind, uint32_t a, uint32_t m) {
			if (kind == MIDDLE && m >= cut.ties)
				return;
			const uint32_t at = a + (m < cut.ties ? m : cut.ties);
			val[at] = tile[i];
			place[at] = uint16_t(i);
		});
}

struct coefficients_of {
	gradcomp_coefficients rank[GRADCOMP_DCT_RANKS];
	uint32_t ranks;
};

static __global__ void __launch_bounds__(SELECT_THREADS)
	dct_back_kernel(cut_matrices all, coefficients_of from, float a, uint32_t flags, int *fault)
{
	SHARED(float, tile, TILE);
	SHARED(float, basis, TILE);
	SHARED(double, cosine, SIDE + 1);
	const my_chunk p = chunk_of(all);
	const uint32_t rows = uint32_t(p.c.rows), columns = uint32_t(p.c.columns), n = rows * columns;
	float sum[ROWS_EACH][COLUMNS_EACH];
	const bool senders = flags & GRADCOMP_DCT_SENDERS;
	bool wrong = false;
	/* How many ranks sent a coefficient is counted where the basis will be. */
	for (uint32_t e = threadIdx.x; e < TILE; e += SELECT_THREADS)
		tile[e] = basis[e] = 0;
	for (uint32_t r = 0; r < from.ranks; r++) {
		const float *val = from.rank[r].val + p.c.at;
		const uint16_t *place = from.rank[r].place + p.c.at;
		__syncthreads();
		for (uint32_t j = threadIdx.x; j < p.c.k; j += SELECT_THREADS) {
			const uint32_t at = place[j];
			const float v = val[j];
			wrong |= at >= n || (j && at <= place[j - 1]) || key_of(v) >= KEY_INF;
			if (at < n) {
				tile[at / columns * STRIDE + at % columns] += a * v;
				if (senders)
					basis[at / columns * STRIDE + at % columns] += 1;
			}
		}
	}
	if (senders) {
		__syncthreads();
		for (uint32_t e = threadIdx.x; e < TILE; e += SELECT_THREADS)
			tile[e] = basis[e] > 1 ? tile[e] / basis[e] : tile[e];
	}
	if (wrong)
		*fault = 1;
	transform<true>(sum, tile, basis, cosine, p.c);
	each_sum(sum, p.c, [=](uint32_t i, uint32_t j, float s) {
		float *x = p.x + i * p.m + j;
		const float v = flags & GRADCOMP_DCT_ADD ? *x + s : s;
		*x = flags & GRADCOMP_DCT_SIGN ? float(int(v > 0) - int(v < 0)) : v;
	});
}

/* with(matrices, coefficients before them, chunks) for some at a time. */
template <class F>
static void some_matrices(const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k, const F &with)
{
	uint64_t before = 0;
	for (size_t i = 0; i < count; i += MATRICES_AT_ONCE) {
		cut_matrices all = {};
		uint64_t sent = 0;
		uint32_t chunks = 0;
		all.chunk = chunk;
		all.k = k;
		all.count = uint32_t(count - i < MATRICES_AT_ONCE ? count - i : size_t(MATRICES_AT_ONCE));
		for (uint32_t j = 0; j < all.count; j++) {
			const dct_cut cut = dct_cut_of(t[i + j].n, t[i + j].m, chunk, k);
			all.at[j] = t[i + j];
			all.first[j] = chunks;
			all.sent[j] = sent;
			chunks += uint32_t(cut.across * cut.down);
			sent += cut.sent;
		}
		if (chunks)
			with(all, before, chunks);
		before += sent;
	}
}

extern "C" void dct_topk_cuda(void *queue, float *val, uint16_t *place, const gradcomp_matrix *t, size_t count,
                              uint32_t chunk, uint32_t k)
{
	some_matrices(t, count, chunk, k, [=](const cut_matrices &all, uint64_t before, uint32_t chunks) {
		launch(dct_topk_kernel, chunks, SELECT_THREADS, 0, queue, all, val + before, place + before);
	});
}

extern "C" void dct_back_cuda(void *queue, const gradcomp_matrix *t, size_t count, uint32_t chunk, uint32_t k,
                              const gradcomp_coefficients *from, size_t ranks, float a, uint32_t flags, int *fault)
{
	some_matrices(t, count, chunk, k, [=](const cut_matrices &all, uint64_t before, uint32_t chunks) {
		coefficients_of these = {};
		these.ranks = uint32_t(ranks);
		for (size_t r = 0; r < ranks; r++)
			these.rank[r] = gradcomp_coefficients{from[r].val + before, from[r].place + before};
		launch(dct_back_kernel, chunks, SELECT_THREADS, 0, queue, all, these, a, flags, fault);
	});
}
