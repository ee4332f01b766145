/* Orthonormalises the columns of a tall thin matrix: the Cholesky QR of
 * cpu/orthonormalise.c, which says why. To the bit: every sum has the host's order, only
 * those that do not depend on each other run side by side.
 *
 * A matrix that fits the shared memory of one block is read and written once, by that
 * block, in one launch. A larger one is divided by chunks of rows, if there is scratch
 * memory, and takes four: the first sums the Gram matrix of each chunk. In the second every
 * block adds these, factors the sum, which all do alike, and applies it to chunks of its
 * own; it also sums their new Gram matrices where a second round is due. The third is that
 * round, the fourth fills in columns, and most times both find nothing to do. Without
 * scratch memory one block reads such a matrix tile by tile. */
#include "operators/cuda/batch.h"

enum {
	MOST = 64,
	BLOCK = 128,
	CHUNKS = 64,
	ORTHO_THREADS = 512,
	LANES = 8,
	SIDE = 4,
	SUMS = SIDE * SIDE,
	ITEMS = ORTHO_THREADS / LANES,
	ROOM = ITEMS * SUMS,
	LOADS = 8,
	ENOUGH_BLOCKS = 264 /* two for each of an H200's processors */
};
#define DEPENDENT 1e-12
#define ONE_ROUND 1e-7
/* A block takes so much shared memory at most; compute capability 8.6 has 99 KiB. */
enum { SHARED_MOST = 96 << 10 };
static_assert(ROOM >= 2 * ORTHO_THREADS, "a sum and a row for each thread");

/* Notes what is known of a matrix's columns. */
struct columns {
	double smallest; /* pivot */
	int count;       /* the number of columns in use */
	int kept[MOST];  /* these, ascending, but for those filled in, which come last */
	int used[MOST];  /* 1 for a column that is among them */
};

/* In shared memory but for the sizes. */
struct ortho {
	size_t n;
	unsigned r, ld, lg; /* columns; rows of the tile and of the square are so long */
	unsigned rows;      /* those of the tile */
	unsigned pairs;     /* pairs of SIDE columns with as many */
	unsigned at_once;   /* blocks of rows */
	/* From the diagonal up the Gram matrix, then the factor; below it the factor's inverse,
	 * element (i, j) at (j, i). */
	double *square;
	double *scale; /* 1 / length of a column */
	double *unit;  /* 1 / diagonal of the factor, then the inverse's diagonal */
	double *pivot;
	double *room; /* sums of at_once blocks; later for the search of a row */
	columns *c;
	float *tile;
};

static inline __host__ __device__ unsigned tile_row(unsigned r)
{
	return r <= 4 ? r : r | 1;
}

static inline __host__ __device__ unsigned pairs_of(unsigned r)
{
	const unsigned groups = (r + SIDE - 1) / SIDE;
	return groups * (groups + 1) / 2;
}

/* Doubles of shared memory beside the tile. */
static inline unsigned fixed_of(unsigned r)
{
	return r * (r | 1) + 3 * r + ROOM + unsigned(sizeof(columns) / sizeof(double));
}

/* How many rows a tile may have. */
static unsigned most_rows(unsigned r)
{
	return unsigned((SHARED_MOST - fixed_of(r) * sizeof(double)) / (tile_row(r) * sizeof(float)));
}

static size_t shared_of(unsigned r, unsigned rows)
{
	return fixed_of(r) * sizeof(double) + size_t(rows) * tile_row(r) * sizeof(float);
}

INLINE ortho ortho_of(double *memory, size_t n, unsigned r, unsigned rows)
{
	ortho o;
	o.n = n;
	o.r = r;
	o.ld = tile_row(r);
	o.lg = r | 1;
	o.rows = rows;
	o.pairs = pairs_of(r);
	o.at_once = o.pairs < ITEMS ? ITEMS / o.pairs : 1;
	o.square = memory;
	o.scale = o.square + r * o.lg;
	o.unit = o.scale + r;
	o.pivot = o.unit + r;
	o.room = o.pivot + r;
	o.c = reinterpret_cast<columns *>(o.room + ROOM);
	o.tile = reinterpret_cast<float *>(o.c + 1);
	return o;
}

/* Row and column of each ORTHO_THREADS-th element, without a division for each. */
struct walker {
	unsigned r, row, column;
	__device__ explicit walker(unsigned columns)
	    : r(columns), row(threadIdx.x / columns), column(threadIdx.x % columns)
	{
	}
	__device__ void next(unsigned rows, unsigned rest)
	{
		row += rows;
		column += rest;
		if (column >= r) {
			column -= r;
			row++;
		}
	}
};

/* `rows` rows of A from `row` on into the tile. */
INLINE void tile_load(const ortho &o, const float *A, size_t row, unsigned rows)
{
	const unsigned all = rows * o.r, by = ORTHO_THREADS / o.r, rest = ORTHO_THREADS % o.r;
	const float *from = A + row * o.r;
	walker at(o.r);
	__syncthreads();
	for (unsigned e = threadIdx.x; e < all; e += LOADS * ORTHO_THREADS) {
		float v[LOADS];
#pragma unroll
		for (int u = 0; u < LOADS; u++)
			v[u] = e + u * ORTHO_THREADS < all ? from[e + u * ORTHO_THREADS] : 0;
#pragma unroll
		for (int u = 0; u < LOADS; u++) {
			if (e + u * ORTHO_THREADS < all)
				o.tile[at.row * o.ld + at.column] = v[u];
			at.next(by, rest);
		}
	}
	__syncthreads();
}

/* One of LANES lanes of the products of SIDE columns with SIDE others, over up to BLOCK rows.
 * A product of floats is exact, so one rounding is the host's. */
INLINE void lane_sums(double (&s)[SIDE][SIDE], const ortho &o, unsigned i, unsigned j, unsigned row, unsigned end)
{
	for (unsigned k = row + threadIdx.x % LANES; k < end; k += LANES) {
		const float *at = o.tile + k * o.ld;
		double x[SIDE], y[SIDE];
#pragma unroll
		for (unsigned a = 0; a < SIDE; a++) {
			x[a] = i + a < o.r ? at[i + a] : 0;
			y[a] = j + a < o.r ? at[j + a] : 0;
		}
#pragma unroll
		for (int a = 0; a < SIDE; a++)
#pragma unroll
			for (int b = 0; b < SIDE; b++)
				s[a][b] = __fma_rn(x[a], y[b], s[a][b]);
	}
#pragma unroll
	for (int a = 0; a < SIDE; a++)
#pragma unroll
		for (int b = 0; b < SIDE; b++)
#pragma unroll
			for (int d = LANES / 2; d; d /= 2)
				s[a][b] = s[a][b] + __shfl_xor_sync(ALL_LANES, s[a][b], d);
}

/* The first columns of a pair. */
struct corner {
	unsigned i, j;
};

INLINE corner corner_of(const ortho &o, unsigned pair)
{
	unsigned i = 0;
	for (unsigned groups = (o.r + SIDE - 1) / SIDE; pair >= groups - i; i++)
		pair -= groups - i;
	return corner{i * SIDE, (i + pair) * SIDE};
}

/* Adds sum number e of a pair, of each block of some, to the square. */
INLINE void put_sums(const ortho &o, const corner &at, unsigned e, const double *s, unsigned some)
{
	const unsigned i = at.i + e / SIDE, j = at.j + e % SIDE;
	if (i > j || j >= o.r)
		return;
	double all = o.square[i * o.lg + j];
#pragma unroll 8
	for (unsigned b = 0; b < some; b++)
		all += s[b * o.pairs * SUMS];
	o.square[i * o.lg + j] = all;
}

/* Up to at_once blocks of the tile's rows from block `first` on. */
INLINE void gram_blocks(const ortho &o, unsigned first, unsigned rows)
{
	const unsigned blocks = (rows + BLOCK - 1) / BLOCK;
	const unsigned some = blocks - first < o.at_once ? blocks - first : o.at_once;
	for (unsigned base = 0; base < o.at_once * o.pairs; base += ITEMS) {
		const unsigned item = base + threadIdx.x / LANES, b = item / o.pairs;
		const unsigned row = (first + b) * BLOCK, end = row + BLOCK < rows ? row + BLOCK : rows;
		const corner at = corner_of(o, item % o.pairs);
		double s[SIDE][SIDE] = {};
		lane_sums(s, o, at.i, at.j, row, b < some ? end : row);
		if (b >= some || threadIdx.x % LANES)
			continue;
#pragma unroll
		for (int e = 0; e < SUMS; e++)
			if (o.at_once > 1)
				o.room[item * SUMS + e] = s[e / SIDE][e % SIDE];
			else
				put_sums(o, at, unsigned(e), &s[e / SIDE][e % SIDE], 1);
	}
	if (o.at_once == 1)
		return;
	__syncthreads();
	for (unsigned e = threadIdx.x; e < o.pairs * SUMS; e += ORTHO_THREADS)
		put_sums(o, corner_of(o, e / SUMS), e % SUMS, o.room + e, some);
	__syncthreads();
}

/* The square := that of rows from..to; `loaded`: they are in the tile. */
INLINE void gram(const ortho &o, const float *A, size_t from, size_t to, bool loaded)
{
	for (unsigned i = warp_id(); i < o.r; i += ORTHO_THREADS / WARP)
		for (unsigned j = i + lane_id(); j < o.r; j += WARP)
			o.square[i * o.lg + j] = 0;
	__syncthreads();
	for (size_t row = from; row < to; row += o.rows) {
		const unsigned rows = to - row < o.rows ? unsigned(to - row) : o.rows;
		if (!loaded)
			tile_load(o, A, row, rows);
		for (unsigned b = 0; b * BLOCK < rows; b += o.at_once)
			gram_blocks(o, b, rows);
	}
	__syncthreads();
}

static inline __host__ __device__ size_t chunk_of(size_t n)
{
	return BLOCK * ((n + BLOCK * CHUNKS - 1) / (BLOCK * CHUNKS));
}

/* The square := that of all rows, chunk by chunk; below the diagonal, and in `pivot`, are
 * the chunks before. */
INLINE void gram_all(const ortho &o, const float *A, bool loaded)
{
	const size_t chunk = chunk_of(o.n);
	if (chunk == BLOCK) {
		gram(o, A, 0, o.n, loaded);
		return;
	}
	for (size_t from = 0; from < o.n; from += chunk) {
		gram(o, A, from, o.n - from < chunk ? o.n : from + chunk, false);
		for (unsigned i = warp_id(); i < o.r; i += ORTHO_THREADS / WARP)
			for (unsigned j = i + lane_id(); j < o.r; j += WARP) {
				double *const upto = i == j ? o.pivot + i : o.square + j * o.lg + i;
				double *const part = o.square + i * o.lg + j;
				*upto = from ? *upto + *part : *part;
				*part = *upto;
			}
	}
	__syncthreads();
}

/* Cholesky of the scaled Gram matrix over the columns that carry something, a row at a time:
 * what a row takes from those below it is taken from all of them at once. */
INLINE void factor(const ortho &o)
{
	const unsigned r = o.r, t = threadIdx.x, w = warp_id(), l = lane_id();
	unsigned nk = 0;
	double smallest = 1;
	for (unsigned j = t; j < r; j += ORTHO_THREADS) {
		const double len2 = o.square[j * o.lg + j];
		const bool sound = len2 > 0 && len2 < 1e300;
		o.scale[j] = sound ? 1 / sqrt(len2) : 0;
		o.pivot[j] = sound ? 1 : -1;
		o.c->used[j] = 0;
	}
	__syncthreads();
	for (unsigned i = w; i < r; i += ORTHO_THREADS / WARP)
		for (unsigned j = i + 1 + l; j < r; j += WARP)
			o.square[i * o.lg + j] = o.square[i * o.lg + j] * o.scale[i] * o.scale[j];
	__syncthreads();
	for (unsigned i = 0; i < r && nk < o.n; i++) {
		const double pivot = o.pivot[i];
		double *const row = o.square + i * o.lg;
		if (!(pivot > DEPENDENT))
			continue;
		const double unit = 1 / sqrt(pivot);
		for (unsigned j = i + 1 + t; j < r; j += ORTHO_THREADS) {
			const double v = row[j] * unit;
			row[j] = v;
			o.pivot[j] -= v * v;
		}
		if (!t) {
			o.unit[i] = unit;
			o.c->used[i] = 1;
			o.c->kept[nk] = int(i);
		}
		smallest = pivot < smallest ? pivot : smallest;
		nk++;
		__syncthreads();
		for (unsigned a = i + 1 + w; a < r; a += ORTHO_THREADS / WARP)
			for (unsigned j = a + 1 + l; j < r; j += WARP)
				o.square[a * o.lg + j] -= row[a] * row[j];
		__syncthreads();
	}
	if (!t) {
		o.c->count = int(nk);
		o.c->smallest = smallest;
	}
	__syncthreads();
}

/* The inverse of the factor with the scales in it, from the last row up: a row that is known
 * is taken from all above it at once. */
INLINE void invert(const ortho &o)
{
	const unsigned t = threadIdx.x, w = warp_id(), l = lane_id();
	const int nk = o.c->count, *const kept = o.c->kept;
	for (unsigned j = w; j < o.r; j += ORTHO_THREADS / WARP)
		for (unsigned i = l; i < j; i += WARP)
			o.square[j * o.lg + i] = 0;
	__syncthreads();
	for (int x = nk - 1; x >= 0; x--) {
		const int k = kept[x];
		for (int y = x + 1 + int(t); y < nk; y += ORTHO_THREADS)
			o.square[kept[y] * o.lg + k] *= o.unit[k];
		__syncthreads();
		for (int a = int(w); a < x; a += ORTHO_THREADS / WARP) {
			const int i = kept[a];
			const double above = o.square[i * o.lg + k];
			for (int y = x + int(l); y < nk; y += WARP) {
				double *const row = o.square + kept[y] * o.lg;
				row[i] -= above * (y == x ? o.unit[k] : row[k]);
			}
		}
		__syncthreads();
	}
	for (int y = int(w); y < nk; y += ORTHO_THREADS / WARP)
		for (int x = int(l); x <= y; x += WARP) {
			const int i = kept[x];
			double *const at = x == y ? o.unit + i : o.square + kept[y] * o.lg + i;
			*at *= o.scale[i];
		}
	__syncthreads();
}

/* A := A R^-1 on the kept columns, 0 on the others, for the rows in the tile. Where no column
 * is kept those that will be filled in are unit vectors: they are, here. */
INLINE void apply(const ortho &o, float *A, size_t first, unsigned rows)
{
	const unsigned by = ORTHO_THREADS / o.r, rest = ORTHO_THREADS % o.r;
	const int nk = o.c->count;
	for (walker at(o.r); at.row < rows; at.next(by, rest)) {
		const float *const from = o.tile + at.row * o.ld;
		const unsigned c = at.column;
		double s = !nk && first + at.row == c;
		if (o.c->used[c]) {
			s = from[c] * o.unit[c];
			for (int b = 0; b < nk && o.c->kept[b] < int(c); b++)
				s += from[o.c->kept[b]] * o.square[c * o.lg + unsigned(o.c->kept[b])];
		}
		A[(first + at.row) * o.r + c] = float(s);
	}
	__syncthreads();
}

/* The row that the kept columns reach least; the first of equal ones. */
INLINE size_t least_row(const ortho &o, const float *A)
{
	double *const sums = o.room;
	u64 *const rows = reinterpret_cast<u64 *>(sums + ORTHO_THREADS);
	const unsigned t = threadIdx.x;
	sums[t] = 0;
	rows[t] = ~u64(0);
	for (size_t i = t; i < o.n; i += ORTHO_THREADS) {
		double s = 0;
		for (int a = 0; a < o.c->count; a++) {
			const double v = A[i * o.r + o.c->kept[a]];
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

/* Column c less its part in the kept ones, and of length 1. There are few rows. */
INLINE void repair_column(const ortho &o, float *A, unsigned c)
{
	const int nk = o.c->count;
	for (int a = int(threadIdx.x); a < nk; a += ORTHO_THREADS) {
		double s = 0;
		for (size_t i = 0; i < o.n; i++)
			s += double(A[i * o.r + c]) * A[i * o.r + o.c->kept[a]];
		o.pivot[a] = s;
	}
	__syncthreads();
	for (size_t i = threadIdx.x; i < o.n; i += ORTHO_THREADS) {
		double v = A[i * o.r + c];
		for (int a = 0; a < nk; a++)
			v -= o.pivot[a] * A[i * o.r + o.c->kept[a]];
		A[i * o.r + c] = float(v);
	}
	__syncthreads();
	double square = 0;
	for (size_t i = 0; i < o.n; i++)
		square += double(A[i * o.r + c]) * A[i * o.r + c];
	__syncthreads();
	const double unit = 1 / sqrt(square);
	for (size_t i = threadIdx.x; i < o.n; i += ORTHO_THREADS)
		A[i * o.r + c] = float(A[i * o.r + c] * unit);
	__syncthreads();
}

/* Column c := e_t made orthogonal to the kept columns and of length 1. */
INLINE void fill_column(const ortho &o, float *A, unsigned c)
{
	const size_t t = least_row(o, A);
	const int nk = o.c->count;
	for (int a = int(threadIdx.x); a < nk; a += ORTHO_THREADS)
		o.pivot[a] = A[t * o.r + o.c->kept[a]];
	__syncthreads();
	double left = 1;
	for (int a = 0; a < nk; a++)
		left -= o.pivot[a] * o.pivot[a];
	const double unit = 1 / sqrt(left);
	for (size_t i = threadIdx.x; i < o.n; i += ORTHO_THREADS) {
		double v = i == t;
		for (int a = 0; a < nk; a++)
			v -= o.pivot[a] * A[i * o.r + o.c->kept[a]];
		A[i * o.r + c] = float(v * unit);
	}
	__syncthreads();
	if (4 * size_t(nk) > 3 * o.n)
		repair_column(o, A, c);
	if (!threadIdx.x) {
		o.c->kept[nk] = int(c);
		o.c->count = nk + 1;
	}
	__syncthreads();
}

static inline __host__ __device__ size_t least(size_t a, size_t b)
{
	return a < b ? a : b;
}

INLINE void fill(const ortho &o, float *A)
{
	for (unsigned c = 0; c < o.r && size_t(o.c->count) < o.n; c++)
		if (!o.c->used[c])
			fill_column(o, A, c);
}

static __global__ void __launch_bounds__(ORTHO_THREADS, 1)
	ortho_kernel(matrices<1> all, size_t n, unsigned r, unsigned tile_rows)
{
	SHARED_DYNAMIC(double, memory);
	float *A = all.at[0][blockIdx.x];
	const ortho o = ortho_of(memory, n, r, tile_rows);
	const bool whole = n <= tile_rows && chunk_of(n) == BLOCK;
	for (int round = 0; round < 2; round++) {
		if (whole)
			tile_load(o, A, 0, unsigned(n));
		gram_all(o, A, whole);
		factor(o);
		invert(o);
		for (size_t row = 0; row < n; row += tile_rows) {
			const unsigned rows = unsigned(least(n - row, tile_rows));
			if (!whole)
				tile_load(o, A, row, rows);
			apply(o, A, row, rows);
		}
		if (!(o.c->smallest < ONE_ROUND))
			break;
		__syncthreads();
	}
	if (o.c->count)
		fill(o, A);
}

/* In scratch memory: what each round found, and the sums of chunks in each round. */
struct split_room {
	columns *found;
	double *parts;
	unsigned chunks;
	size_t each, round; /* doubles from one part, and from one round, to the next */

	__device__ columns *columns_of(int second) const { return found + 2 * blockIdx.y + second; }
	__device__ double *part(int second, unsigned chunk) const
	{
		return parts + size_t(second) * round + (size_t(blockIdx.y) * chunks + chunk) * each;
	}
};

/* The square from the diagonal up to and from memory. */
INLINE void put_part(const ortho &o, double *part)
{
	for (unsigned i = warp_id(); i < o.r; i += ORTHO_THREADS / WARP)
		for (unsigned j = i + lane_id(); j < o.r; j += WARP)
			part[i * o.r + j] = o.square[i * o.lg + j];
}

INLINE void add_parts(const ortho &o, const split_room &room, int second)
{
	const double *const first = room.part(second, 0);
	for (unsigned i = warp_id(); i < o.r; i += ORTHO_THREADS / WARP)
		for (unsigned j = i + lane_id(); j < o.r; j += WARP) {
			double s = 0;
#pragma unroll 8
			for (unsigned c = 0; c < room.chunks; c++)
				s += first[c * room.each + i * o.r + j];
			o.square[i * o.lg + j] = s;
		}
	__syncthreads();
}

static __global__ void __launch_bounds__(ORTHO_THREADS, 1)
	gram_kernel(matrices<1> all, size_t n, unsigned r, unsigned tile_rows, split_room room)
{
	SHARED_DYNAMIC(double, memory);
	const ortho o = ortho_of(memory, n, r, tile_rows);
	const size_t chunk = chunk_of(n), from = blockIdx.x * chunk;
	gram(o, all.at[0][blockIdx.y], from, least(n, from + chunk), false);
	put_part(o, room.part(0, blockIdx.x));
}

static __global__ void __launch_bounds__(ORTHO_THREADS, 1)
	split_kernel(matrices<1> all, size_t n, unsigned r, unsigned tile_rows, split_room room, int second)
{
	SHARED_DYNAMIC(double, memory);
	float *A = all.at[0][blockIdx.y];
	const ortho o = ortho_of(memory, n, r, tile_rows);
	const size_t chunk = chunk_of(n);
	if (second && !(room.columns_of(0)->smallest < ONE_ROUND))
		return;
	add_parts(o, room, second);
	factor(o);
	invert(o);
	if (!blockIdx.x && !threadIdx.x)
		*room.columns_of(second) = *o.c;
	const bool again = !second && o.c->smallest < ONE_ROUND;
	for (unsigned c = blockIdx.x; c < room.chunks; c += gridDim.x) {
		const size_t from = c * chunk, to = least(n, from + chunk);
		for (size_t row = from; row < to; row += tile_rows) {
			const unsigned rows = unsigned(least(to - row, tile_rows));
			tile_load(o, A, row, rows);
			apply(o, A, row, rows);
		}
		if (again) {
			gram(o, A, from, to, false);
			put_part(o, room.part(1, c));
		}
	}
}

static __global__ void __launch_bounds__(ORTHO_THREADS, 1)
	fill_kernel(matrices<1> all, size_t n, unsigned r, split_room room)
{
	SHARED(double, memory, MOST + ROOM + sizeof(columns) / sizeof(double));
	const columns *found = room.columns_of(0);
	found += found->smallest < ONE_ROUND;
	ortho o;
	o.n = n;
	o.r = r;
	if (!found->count || size_t(found->count) == least(n, r))
		return;
	o.pivot = memory;
	o.room = memory + MOST;
	o.c = reinterpret_cast<columns *>(o.room + ROOM);
	if (!threadIdx.x)
		*o.c = *found;
	__syncthreads();
	fill(o, all.at[0][blockIdx.y]);
}

static size_t chunks_of(size_t n)
{
	return (n + chunk_of(n) - 1) / chunk_of(n);
}

/* Returns true when one block reads the matrix once. */
static bool fits(size_t n, unsigned r)
{
	return n <= most_rows(r) && chunk_of(n) == BLOCK;
}

/* Divides the scratch among a batch that is taken at once. */
static split_room split_layout(void *scratch, size_t count, size_t n, size_t r)
{
	split_room room;
	room.chunks = unsigned(chunks_of(n));
	room.each = r * r;
	room.round = count * room.chunks * room.each;
	room.found = static_cast<columns *>(scratch);
	room.parts = reinterpret_cast<double *>(room.found + 2 * count);
	return room;
}

extern "C" size_t orthonormalise_scratch_cuda(size_t count, size_t n, size_t r)
{
	const size_t at_once = count < BATCH ? count : size_t(BATCH);
	if (!n || !r || r > MOST || fits(n, unsigned(r)))
		return 0;
	return (at_once * (2 * sizeof(columns) + 2 * chunks_of(n) * r * r * sizeof(double)) + 63) / 64 * 64;
}

static void in_one_block(void *queue, const matrices<1> &part, unsigned some, size_t n, unsigned r)
{
	const unsigned most = most_rows(r), rows = fits(n, r) ? unsigned(n) : most / BLOCK * BLOCK;
	allow_shared<ortho_kernel>(SHARED_MOST);
	launch(ortho_kernel, some, ORTHO_THREADS, shared_of(r, rows), queue, part, n, r, rows);
}

static void in_chunks(void *queue, const matrices<1> &part, unsigned some, size_t n, unsigned r, void *scratch)
{
	const split_room room = split_layout(scratch, some, n, r);
	const unsigned rows = unsigned(least(most_rows(r) / BLOCK * BLOCK, chunk_of(n)));
	const unsigned wide = unsigned(least(blocks_for(ENOUGH_BLOCKS, some, CHUNKS), room.chunks));
	const size_t shared = shared_of(r, rows);
	allow_shared<gram_kernel>(SHARED_MOST);
	allow_shared<split_kernel>(SHARED_MOST);
	launch(gram_kernel, dim3(room.chunks, some), ORTHO_THREADS, shared, queue, part, n, r, rows, room);
	launch(split_kernel, dim3(wide, some), ORTHO_THREADS, shared, queue, part, n, r, rows, room, 0);
	launch(split_kernel, dim3(wide, some), ORTHO_THREADS, shared, queue, part, n, r, rows, room, 1);
	launch(fill_kernel, dim3(1, some), ORTHO_THREADS, 0, queue, part, n, r, room);
}

extern "C" void orthonormalise_split_cuda(void *queue, float *const *A, size_t count, size_t n, size_t r, void *scratch)
{
	const float *const *const from[] = {A};
	if (!n || !r || r > MOST)
		return;
	in_parts(from, count, [=](const matrices<1> &part, size_t, unsigned some) {
		if (scratch && !fits(n, unsigned(r)))
			in_chunks(queue, part, some, n, unsigned(r), scratch);
		else
			in_one_block(queue, part, some, n, unsigned(r));
	});
}
