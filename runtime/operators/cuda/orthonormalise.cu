/* Orthonormalises the columns of a tall thin matrix, one thread block a matrix: the
 * Cholesky QR of cpu/orthonormalise.c, which says why. To the bit: every sum has the
 * host's order, only those that do not depend on each other run side by side. */
#include "operators/cuda/batch.h"

enum { MOST = 64, BLOCK = 128, ORTHO_THREADS = 512 /* ROW_LANES, too */, TILE = BLOCK * (MOST + 1), DOTS = 512,
       SUMS = 8 /* whose lanes fit the tile */ };
#define DEPENDENT 1e-12
#define ONE_ROUND 1e-7
static_assert(SUMS * ORTHO_THREADS * sizeof(double) <= TILE * sizeof(float), "room for the lanes");
static_assert(SUMS * WARP <= ORTHO_THREADS, "a warp for each sum");

/* In shared memory but for the sizes. Square arrays have rows of r. */
struct ortho {
	size_t n;
	unsigned r, ld, blocks; /* columns, row of the tile, blocks of rows a tile */
	double *gram;           /* then the inverse */
	double *factor;         /* before that, products of columns in each block */
	double *scale;          /* 1 / length of a column */
	double *smallest;       /* pivot */
	int *kept, *place;      /* columns in use, ascending; and where a column is there, or -1 */
	int *nkept;
	float *tile;
};

static size_t square_of(size_t r)
{
	return r * r > DOTS ? r * r : size_t(DOTS);
}

static size_t shared_of(size_t r)
{
	return (2 * square_of(r) + MOST + 1) * sizeof(double) + (2 * MOST + 2) * sizeof(int) + TILE * sizeof(float);
}

/* Rows row.. of A into the tile, 0 where there are none. */
INLINE void tile_load(const ortho &o, const float *A, size_t row, unsigned rows)
{
	__syncthreads();
	for (unsigned e = threadIdx.x; e < rows * o.r; e += ORTHO_THREADS) {
		const unsigned i = e / o.r, c = e % o.r;
		o.tile[i * o.ld + c] = row + i < o.n ? A[row * o.r + e] : 0;
	}
	__syncthreads();
}

/* Eight lanes sum the product of two columns over a block; then lanes in pairs. */
INLINE void gram(const ortho &o, const float *A)
{
	const unsigned square = o.r * o.r, all = o.blocks * square,
		       rounds = (all * 8 + ORTHO_THREADS - 1) / ORTHO_THREADS;
	for (unsigned p = threadIdx.x; p < square; p += ORTHO_THREADS)
		o.gram[p] = 0;
	for (size_t row = 0; row < o.n; row += o.blocks * BLOCK) {
		tile_load(o, A, row, o.blocks * BLOCK);
		for (unsigned round = 0; round < rounds; round++) {
			const unsigned item = round * ORTHO_THREADS + threadIdx.x, dot = item / 8;
			const unsigned b = dot / square, i = dot % square / o.r, j = dot % o.r;
			const bool wanted = dot < all && i <= j;
			double s = 0;
			if (wanted)
				for (unsigned k = item % 8; k < BLOCK; k += 8) {
					const float *at = o.tile + (b * BLOCK + k) * o.ld;
					s += double(at[i]) * at[j];
				}
			for (int d = 4; d; d /= 2)
				s = s + __shfl_xor_sync(ALL_LANES, s, d);
			if (wanted && item % 8 == 0)
				o.factor[dot] = s;
		}
		__syncthreads();
		for (unsigned p = threadIdx.x; p < square; p += ORTHO_THREADS)
			for (unsigned b = 0; p / o.r <= p % o.r && b < o.blocks && row + b * BLOCK < o.n; b++)
				o.gram[p] += o.factor[b * square + p];
	}
	__syncthreads();
}

/* Cholesky of the scaled Gram matrix over the columns that carry something. One warp;
 * a lane has rows a = lane and lane + 32 of the column in work. */
INLINE void factor(const ortho &o)
{
	const unsigned r = o.r, l = threadIdx.x;
	unsigned nk = 0;
	double smallest = 1;
	for (unsigned j = 0; j < r && nk < o.n; j++) {
		const double len2 = o.gram[j * r + j];
		if (!(len2 > 0 && len2 < 1e300))
			continue;
		const double scale = 1 / sqrt(len2);
		double s[2] = {0, 0}, pivot = 1;
		for (unsigned h = 0; h < 2; h++)
			if (l + WARP * h < nk) {
				const int i = o.kept[l + WARP * h];
				s[h] = o.gram[i * r + j] * o.scale[i] * scale;
			}
		for (unsigned b = 0; b < nk; b++) {
			const double v =
				__shfl_sync(ALL_LANES, (b < WARP ? s[0] : s[1]) / o.factor[b * r + b], b % WARP);
			pivot -= v * v;
			for (unsigned h = 0; h < 2; h++)
				if (l + WARP * h > b && l + WARP * h < nk)
					s[h] -= o.factor[b * r + l + WARP * h] * v;
			if (!l)
				o.factor[b * r + nk] = v;
		}
		if (!(pivot > DEPENDENT))
			continue;
		__syncwarp();
		if (!l) {
			o.factor[nk * r + nk] = sqrt(pivot);
			o.scale[j] = scale;
			o.kept[nk] = int(j);
		}
		__syncwarp();
		smallest = pivot < smallest ? pivot : smallest;
		nk++;
	}
	if (!l) {
		*o.nkept = int(nk);
		*o.smallest = smallest;
	}
}

/* The inverse of the factor with the scales in it, a thread a column. */
INLINE void invert(const ortho &o)
{
	const int r = int(o.r), nk = *o.nkept, j = int(threadIdx.x);
	if (j < nk) {
		o.gram[j * r + j] = 1 / o.factor[j * r + j];
		for (int i = j - 1; i >= 0; i--) {
			double s = 0;
			for (int k = i + 1; k <= j; k++)
				s -= o.factor[i * r + k] * o.gram[k * r + j];
			o.gram[i * r + j] = s / o.factor[i * r + i];
		}
		for (int i = 0; i <= j; i++)
			o.gram[i * r + j] *= o.scale[o.kept[i]];
	}
	if (j < r) {
		o.place[j] = -1;
		for (int a = 0; a < nk; a++)
			if (o.kept[a] == j)
				o.place[j] = a;
	}
	__syncthreads();
}

/* A := A R^-1 on the kept columns, 0 on the others. */
INLINE void apply(const ortho &o, float *A)
{
	const unsigned rows = TILE / o.ld;
	for (size_t row = 0; row < o.n; row += rows) {
		tile_load(o, A, row, rows);
		for (unsigned e = threadIdx.x; e < rows * o.r; e += ORTHO_THREADS) {
			const unsigned i = e / o.r, c = e % o.r;
			const float *from = o.tile + i * o.ld;
			const int a = o.place[c];
			double s = 0;
			if (row + i >= o.n)
				break;
			if (a >= 0) {
				s = from[c] * o.gram[unsigned(a) * o.r + unsigned(a)];
				for (int b = 0; b < a; b++)
					s += from[o.kept[b]] * o.gram[unsigned(b) * o.r + unsigned(a)];
			}
			A[row * o.r + e] = float(s);
		}
	}
	__syncthreads();
}

INLINE void round_of(const ortho &o, float *A)
{
	gram(o, A);
	if (threadIdx.x < WARP)
		factor(o);
	__syncthreads();
	invert(o);
	apply(o, A);
}

/* The row that the kept columns reach least; the first of equal ones. The tile is free
 * by now. */
INLINE size_t least_row(const ortho &o, const float *A)
{
	double *const sums = reinterpret_cast<double *>(o.tile);
	u64 *const rows = reinterpret_cast<u64 *>(sums + ORTHO_THREADS);
	const unsigned t = threadIdx.x;
	sums[t] = 0;
	rows[t] = ~u64(0);
	for (size_t i = t; i < o.n; i += ORTHO_THREADS) {
		double s = 0;
		for (int a = 0; a < *o.nkept; a++) {
			const double v = A[i * o.r + o.kept[a]];
			s += v * v;
		}
		if (rows[t] == ~u64(0) || s < sums[t]) {
			sums[t] = s;
			rows[t] = i;
		}
	}
	for (unsigned half = ORTHO_THREADS / 2; half; half /= 2) {
		__syncthreads();
		if (t < half && rows[t + half] != ~u64(0) &&
		    (sums[t + half] < sums[t] || (sums[t + half] == sums[t] && rows[t + half] < rows[t]))) {
			sums[t] = sums[t + half];
			rows[t] = rows[t + half];
		}
	}
	__syncthreads();
	const size_t found = rows[0];
	__syncthreads();
	return found;
}

/* The products of column c and up to SUMS others over all rows, to dot[]: a thread has a lane of
 * each sum, and then a warp a sum, whose lanes are added by halves. */
INLINE void row_sums(const ortho &o, const float *A, unsigned c, const int *others, unsigned count, double *dot)
{
	double *const lanes = reinterpret_cast<double *>(o.tile);
	const unsigned t = threadIdx.x, w = t / WARP, l = t % WARP;
#pragma unroll 1
	for (unsigned k = 0; k < count; k++)
		lanes[k * ORTHO_THREADS + t] = 0;
#pragma unroll 1
	for (size_t i = t; i < o.n; i += ORTHO_THREADS)
#pragma unroll 1
		for (unsigned k = 0; k < count; k++)
			lanes[k * ORTHO_THREADS + t] += double(A[i * o.r + c]) * A[i * o.r + unsigned(others[k])];
	__syncthreads();
	if (w < count) {
		double *const lane = lanes + w * ORTHO_THREADS;
#pragma unroll 1
		for (unsigned half = ORTHO_THREADS / 2; half >= WARP; half /= 2) {
#pragma unroll 1
			for (unsigned i = l; i < half; i += WARP)
				lane[i] += lane[i + half];
			__syncwarp();
		}
		double s = lane[l];
		for (int d = WARP / 2; d; d /= 2)
			s = s + __shfl_xor_sync(ALL_LANES, s, d);
		if (!l)
			dot[w] = s;
	}
	__syncthreads();
}

/* Column c := e_t made orthogonal to the kept columns and of length 1. A thread has the
 * same rows throughout. */
INLINE void fill_column(const ortho &o, float *A, unsigned c)
{
	double *const dot = o.factor;
	const size_t r = o.r, t = least_row(o, A);
	const int nk = *o.nkept;
	for (size_t i = threadIdx.x; i < o.n; i += ORTHO_THREADS)
		A[i * r + c] = i == t;
	/* Behind those that are kept; it becomes one of them in the end. */
	if (!threadIdx.x)
		o.kept[nk] = int(c);
	for (int round = 0; round < 2; round++) {
		__syncthreads();
#pragma unroll 1
		for (int a = 0; a < nk; a += SUMS)
			row_sums(o, A, c, o.kept + a, unsigned(nk - a < SUMS ? nk - a : SUMS), dot + a);
		for (size_t i = threadIdx.x; i < o.n; i += ORTHO_THREADS) {
			double v = A[i * r + c];
			for (int a = 0; a < nk; a++)
				v -= dot[a] * A[i * r + o.kept[a]];
			A[i * r + c] = float(v);
		}
		row_sums(o, A, c, o.kept + nk, 1, dot + nk);
		const double unit = 1 / sqrt(dot[nk]);
		for (size_t i = threadIdx.x; i < o.n; i += ORTHO_THREADS)
			A[i * r + c] = float(A[i * r + c] * unit);
	}
	__syncthreads();
	if (!threadIdx.x)
		*o.nkept = nk + 1;
	__syncthreads();
}

static __global__ void __launch_bounds__(ORTHO_THREADS, 2)
ortho_kernel(matrices<1> all, size_t n, unsigned r, unsigned square)
{
	SHARED_DYNAMIC(double, room);
	float *A = all.at[0][blockIdx.x];
	ortho o;
	o.n = n;
	o.r = r;
	o.ld = r | 1;
	o.blocks = TILE / (BLOCK * o.ld) < square / (r * r) ? TILE / (BLOCK * o.ld) : square / (r * r);
	o.gram = room;
	o.factor = o.gram + square;
	o.scale = o.factor + square;
	o.smallest = o.scale + MOST;
	o.kept = reinterpret_cast<int *>(o.smallest + 1);
	o.place = o.kept + MOST;
	o.nkept = o.place + MOST;
	o.tile = reinterpret_cast<float *>(o.nkept + 2);
	round_of(o, A);
	if (*o.smallest < ONE_ROUND) {
		__syncthreads();
		round_of(o, A);
	}
	for (unsigned c = 0; c < r && size_t(*o.nkept) < n; c++)
		if (o.place[c] < 0)
			fill_column(o, A, c);
}

extern "C" void orthonormalise_batch_cuda(void *queue, float *const *A, size_t count, size_t n, size_t r)
{
	const float *const *const from[] = {A};
	if (!n || !r || r > MOST)
		return;
	allow_shared<ortho_kernel>(shared_of(MOST));
	in_parts(from, count, [=](const matrices<1> &part, size_t, unsigned some) {
		launch(ortho_kernel, some, ORTHO_THREADS, shared_of(r), queue, part, n, unsigned(r),
		       unsigned(square_of(r)));
	});
}

extern "C" void orthonormalise_cuda(void *queue, float *A, size_t n, size_t r)
{
	orthonormalise_batch_cuda(queue, &A, 1, n, r);
}
