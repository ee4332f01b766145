/* The k-th largest magnitude, and the candidates. */
#include "operators/cuda/cuda_select.h"

static unsigned segments_of(size_t n)
{
	return blocks_for(n, SELECT_SHARE, SELECT_SEGMENTS);
}

/* Room for candidates: where the bins are narrow against the spread of x they are a
 * little more than k. */
static uint32_t most_of(size_t n, size_t k)
{
	return n < 65536 || k > n / 2 ? 0 : uint32_t(k + k / 2 + n / 32 + 1024);
}

select_room select_layout(void *scratch, size_t n, size_t k)
{
	select_room r;
	char *p = static_cast<char *>(scratch);
	r.segments = segments_of(n);
	r.most = most_of(n, k);
	r.s = reinterpret_cast<selection *>(p);
	p += 64;
	r.sum = reinterpret_cast<u64 *>(p);
	p += SUM_PARTS * sizeof *r.sum;
	r.digit0 = reinterpret_cast<uint32_t *>(p);
	r.digit1 = r.digit0 + DIGIT0;
	r.digit2 = r.digit1 + DIGIT1;
	r.above = r.digit2 + DIGIT2;
	r.middle = r.above + SELECT_SEGMENTS;
	r.rows = r.middle + SELECT_SEGMENTS;
	r.val = reinterpret_cast<float *>(r.rows + (r.most ? size_t(r.segments) * DIGIT0 : 0));
	r.idx = reinterpret_cast<uint32_t *>(r.val + r.most);
	if (!r.most)
		r.rows = nullptr;
	return r;
}

size_t select_scratch(size_t n, size_t k)
{
	void *const somewhere = reinterpret_cast<void *>(4096);
	select_room r = select_layout(somewhere, n, k);
	return (reinterpret_cast<uintptr_t>(r.idx + r.most) - 4096 + 63) / 64 * 64;
}

/* A thread sums magnitudes exactly in a window of exponents, in units of the lowest:
 * 24 exponents and 24 bits of mantissa leave room for 2^17 of them. What is outside
 * goes to the sum of its own exponent. */
struct exact {
	enum { WINDOW = 24 };
	uint32_t low;
	u64 sum;

	__device__ void add(uint32_t key, u64 *part)
	{
		uint32_t e = key >> 23, m = (key & 0x7fffff) | uint32_t(e != 0) << 23;
		e = e ? e : 1;
		if (e - low < WINDOW)
			sum += u64(m) << (e - low);
		else if (m)
			atomicAdd(&part[e], u64(m));
	}
};

template <bool SUMS>
static __global__ void __launch_bounds__(SELECT_THREADS) first_histogram(select_room r, const float *x, size_t n)
{
	enum { AT_ONCE = 8, STEP = SELECT_THREADS * AT_ONCE };
	SHARED(uint32_t, count, DIGIT0);
	SHARED(uint32_t, room, WARP);
	SHARED(u64, part, SUM_PARTS);
	const size_t size = segment_size(n), from = blockIdx.x * size, to = from + size < n ? from + size : n;
	for (unsigned b = threadIdx.x; b < DIGIT0; b += SELECT_THREADS)
		count[b] = 0;
	exact e = {1, 0};
	uint32_t most = 0, high = 0;
	if (SUMS) {
		for (unsigned b = threadIdx.x; b < SUM_PARTS; b += SELECT_THREADS)
			part[b] = 0;
		uint32_t key = from + threadIdx.x < to ? key_of(x[from + threadIdx.x]) : 0;
		uint32_t top = block_fold(key, largest_of(), room) >> 23;
		e.low = top > exact::WINDOW - 4 ? top - (exact::WINDOW - 4) : 1;
	}
	__syncthreads();
	for (size_t i = from + threadIdx.x; i < to; i += STEP) {
		uint32_t key[AT_ONCE];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			key[u] = i + u * SELECT_THREADS < to ? key_of(x[i + u * SELECT_THREADS]) : 0;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++) {
			/* Zeroes are often many, and are what is left over. */
			if (key[u] >> 19) {
				atomicAdd(&count[key[u] >> 19], 1u);
				high++;
			}
			if (SUMS) {
				e.add(key[u], part);
				most = key[u] > most ? key[u] : most;
			}
		}
	}
	if (SUMS) {
		u64 low = warp_fold(e.sum & UINT32_MAX, sum_of()), upper = warp_fold(e.sum >> 32, sum_of());
		if (!lane_id()) {
			atomicAdd(&part[e.low], low);
			atomicAdd(&part[e.low + 32], upper);
		}
		most = block_fold(most, largest_of(), room);
		if (!threadIdx.x)
			atomicMax(&r.s->top, most);
	}
	__syncthreads();
	high = block_fold(high, sum_of(), room);
	if (!threadIdx.x && from < to)
		count[0] = uint32_t(to - from) - high;
	__syncthreads();
	for (unsigned b = threadIdx.x; b < DIGIT0; b += SELECT_THREADS) {
		if (r.rows)
			r.rows[size_t(blockIdx.x) * DIGIT0 + b] = count[b];
		if (count[b])
			atomicAdd(&r.digit0[b], count[b]);
	}
	for (unsigned b = threadIdx.x; SUMS && b < SUM_PARTS; b += SELECT_THREADS)
		if (part[b])
			atomicAdd(&r.sum[b], part[b]);
}

/* From the highest bin down to the one that holds number `want`; what is above it,
 * and what is in it. One block of SELECT_THREADS. */
struct found {
	uint32_t bin, above, in;
};

INLINE found find_bin(const uint32_t *count, unsigned bins, uint32_t want)
{
	SHARED(uint32_t, sums, WARP);
	SHARED(found, result, 1);
	const unsigned each = bins / SELECT_THREADS, t = threadIdx.x, high = bins - each * t;
	uint32_t mine = 0, upto, before = 0;
	for (unsigned j = 1; j <= each; j++)
		mine += count[high - j];
	upto = mine;
	for (int d = 1; d < WARP; d *= 2) {
		uint32_t other = __shfl_up_sync(ALL_LANES, upto, d);
		upto += lane_id() >= unsigned(d) ? other : 0;
	}
	if (lane_id() == WARP - 1)
		sums[warp_id()] = upto;
	__syncthreads();
	for (unsigned w = 0; w < warp_id(); w++)
		before += sums[w];
	upto += before;
	before = upto - mine;
	if (before < want && want <= upto)
		for (unsigned b = high; b-- > high - each; before += count[b])
			if (before < want && want <= before + count[b])
				*result = found{b, before, count[b]};
	__syncthreads();
	return *result;
}

INLINE void put_first(const select_room &r, const found &f, uint32_t k)
{
	if (threadIdx.x || blockIdx.x)
		return;
	r.s->bin = r.s->prefix = f.bin;
	r.s->rest = k - f.above;
	r.s->picked = f.above + f.in <= r.most ? f.above + f.in : 0;
}

static __global__ void __launch_bounds__(SELECT_THREADS) find_first(select_room r, uint32_t k)
{
	put_first(r, find_bin(r.digit0, DIGIT0, k), k);
}

/* After the last digit the prefix is the key that is taken and, with sums, what reaches
 * the mean is still to be found. */
static __global__ void __launch_bounds__(SELECT_THREADS)
	find_next(select_room r, const uint32_t *count, unsigned bins, unsigned bits, bool last)
{
	const uint32_t want = r.s->rest;
	__syncthreads();
	found f = find_bin(count, bins, want);
	if (threadIdx.x)
		return;
	r.s->prefix = r.s->prefix << bits | f.bin;
	r.s->rest = want - f.above;
	if (last) {
		r.s->low = r.s->prefix;
		r.s->above = r.s->prefix + 1;
	}
}

/* Counts, among the elements whose key begins with the prefix, the `bits` bits after it. */
static __global__ void __launch_bounds__(SELECT_THREADS)
	next_histogram(select_room r, const float *x, size_t n, uint32_t *total, unsigned shift, unsigned bits)
{
	enum { AT_ONCE = 8, STEP = SELECT_THREADS * AT_ONCE };
	SHARED(uint32_t, count, DIGIT1);
	const source src = source_of(r, x, n);
	const size_t size = segment_size(src.n), from = blockIdx.x * size,
		     to = from + size < src.n ? from + size : src.n;
	const uint32_t prefix = r.s->prefix;
	if (from >= to)
		return;
	for (unsigned b = threadIdx.x; b < DIGIT1; b += SELECT_THREADS)
		count[b] = 0;
	__syncthreads();
	for (size_t i = from + threadIdx.x; i < to; i += STEP) {
		uint32_t key[AT_ONCE];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			key[u] = i + u * SELECT_THREADS < to ? key_of(src.val[i + u * SELECT_THREADS]) : UINT32_MAX;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (key[u] >> (shift + bits) == prefix)
				atomicAdd(&count[key[u] >> shift & ((1u << bits) - 1)], 1u);
	}
	__syncthreads();
	for (unsigned b = threadIdx.x; b < DIGIT1; b += SELECT_THREADS)
		if (count[b])
			atomicAdd(&total[b], count[b]);
}

/* Every block looks for the bin, which takes less than a launch. */
static __global__ void __launch_bounds__(SELECT_THREADS) count_candidates(select_room r, uint32_t k)
{
	SHARED(uint32_t, room, WARP);
	const uint32_t *row = r.rows + size_t(blockIdx.x) * DIGIT0;
	const found f = find_bin(r.digit0, DIGIT0, k);
	uint32_t c = 0;
	put_first(r, f, k);
	for (unsigned b = threadIdx.x; b < DIGIT0; b += SELECT_THREADS)
		c += b >= f.bin ? row[b] : 0;
	c = block_fold(c, sum_of(), room);
	if (!threadIdx.x)
		r.above[blockIdx.x] = c;
}

static __global__ void __launch_bounds__(SELECT_THREADS, SELECT_BLOCKS) collect(select_room r, const float *x, size_t n)
{
	SHARED(uint32_t, room, WARP);
	if (!r.s->picked)
		return;
	const size_t size = segment_size(n), from = blockIdx.x * size, to = from + size < n ? from + size : n;
	const uint32_t floor = r.s->bin << 19;
	counts before = counts_before(r.above, blockIdx.x, gridDim.x, room);
	before.y = 0;
	walk<false>(
		x, from, to, before, [=](uint32_t key) { return key >= floor ? ABOVE : LEFT_OUT; },
		[=](size_t i, int, uint32_t a, uint32_t) {
			r.val[a] = x[i];
			r.idx[a] = uint32_t(i);
		});
}

void select_key(void *queue, const select_room &r, const float *x, size_t n, size_t k, bool sums)
{
	device_zero(queue, r.s, size_t(reinterpret_cast<char *>(r.above) - reinterpret_cast<char *>(r.s)));
	launch(sums ? first_histogram<true> : first_histogram<false>, r.segments, SELECT_THREADS, 0, queue, r, x, n);
	if (r.rows) {
		launch(count_candidates, r.segments, SELECT_THREADS, 0, queue, r, uint32_t(k));
		launch(collect, r.segments, SELECT_THREADS, 0, queue, r, x, n);
	} else {
		launch(find_first, 1, SELECT_THREADS, 0, queue, r, uint32_t(k));
	}
	launch(next_histogram, r.segments, SELECT_THREADS, 0, queue, r, x, n, r.digit1, 9, 10);
	launch(find_next, 1, SELECT_THREADS, 0, queue, r, r.digit1, DIGIT1, 10, false);
	launch(next_histogram, r.segments, SELECT_THREADS, 0, queue, r, x, n, r.digit2, 0, 9);
	launch(find_next, 1, SELECT_THREADS, 0, queue, r, r.digit2, DIGIT2, 9, true);
}

static __global__ void __launch_bounds__(SELECT_THREADS) count_kernel(select_room r, const float *x, size_t n)
{
	enum { AT_ONCE = 8, STEP = SELECT_THREADS * AT_ONCE };
	SHARED(uint32_t, room, WARP);
	const source src = source_of(r, x, n);
	const size_t size = segment_size(src.n), from = blockIdx.x * size,
		     to = from + size < src.n ? from + size : src.n;
	const uint32_t high = r.s->above, low = r.s->low;
	uint32_t above = 0, middle = 0;
	for (size_t i = from + threadIdx.x; i < to; i += STEP) {
		uint32_t key[AT_ONCE];
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			key[u] = i + u * SELECT_THREADS < to ? key_of(src.val[i + u * SELECT_THREADS]) : 0;
#pragma unroll
		for (int u = 0; u < AT_ONCE; u++)
			if (i + u * SELECT_THREADS < to) {
				above += key[u] >= high;
				middle += key[u] >= low && key[u] < high;
			}
	}
	above = block_fold(above, sum_of(), room);
	__syncthreads();
	middle = block_fold(middle, sum_of(), room);
	if (!threadIdx.x) {
		r.above[blockIdx.x] = above;
		r.middle[blockIdx.x] = middle;
	}
}

void select_count(void *queue, const select_room &r, const float *x, size_t n)
{
	launch(count_kernel, r.segments, SELECT_THREADS, 0, queue, r, x, n);
}
