/* Sparse vectors: ascending indices and their values. */
#include "operators/cuda/cuda_select.h"

static __global__ void __launch_bounds__(THREADS)
	gather_kernel(float *val, const float *x, const uint32_t *idx, size_t k)
{
	for (size_t j = thread_id(); j < k; j += thread_count())
		val[j] = x[idx[j]];
}

static __global__ void __launch_bounds__(THREADS)
	scatter_kernel(float *y, const uint32_t *idx, const float *val, size_t k)
{
	for (size_t j = thread_id(); j < k; j += thread_count())
		y[idx[j]] = val ? val[j] : 0;
}

/* No index stands twice in what has passed sparse_check(), so no two threads meet. */
static __global__ void __launch_bounds__(THREADS)
	scatter_add_kernel(float *y, size_t n, const uint32_t *idx, const float *val, size_t k, float a)
{
	for (size_t j = thread_id(); j < k; j += thread_count())
		if (idx[j] < n && idx[j] != GRADCOMP_NO_INDEX)
			y[idx[j]] += a * val[j];
}

static __global__ void __launch_bounds__(THREADS)
	sparse_check_kernel(int *fault, const uint32_t *idx, const float *val, size_t k, size_t n)
{
	for (size_t j = thread_id(); j < k; j += thread_count())
		if ((j + 1 < k ? idx[j] >= idx[j + 1] : idx[j] >= n) || (val && key_of(val[j]) >= KEY_INF))
			*fault = 1;
}

static unsigned blocks_of(size_t k)
{
	return blocks_for(k, THREADS, 1 << 20);
}

extern "C" void gather_cuda(void *queue, float *val, const float *x, const uint32_t *idx, size_t k)
{
	if (k)
		launch(gather_kernel, blocks_of(k), THREADS, 0, queue, val, x, idx, k);
}

extern "C" void scatter_cuda(void *queue, float *y, const uint32_t *idx, const float *val, size_t k)
{
	if (k)
		launch(scatter_kernel, blocks_of(k), THREADS, 0, queue, y, idx, val, k);
}

extern "C" gradcomp_status scatter_add_cuda(void *queue, float *y, size_t n, const uint32_t *idx, const float *val,
                                            size_t k, float a)
{
	if (k)
		launch(scatter_add_kernel, blocks_of(k), THREADS, 0, queue, y, n, idx, val, k, a);
	return GRADCOMP_OK;
}

extern "C" void sparse_check_cuda(void *queue, int *fault, const uint32_t *idx, const float *val, size_t k, size_t n)
{
	if (k)
		launch(sparse_check_kernel, blocks_of(k), THREADS, 0, queue, fault, idx, val, k, n);
}

/* How many of idx[0..k) are below v. */
INLINE size_t below(const uint32_t *idx, size_t k, uint32_t v)
{
	size_t from = 0;
	while (k) {
		size_t half = k / 2;
		if (idx[from + half] < v) {
			from += half + 1;
			k -= half + 1;
		} else {
			k = half;
		}
	}
	return from;
}

/* Adds up the pairs of all ranks.
 *
 * A block has a tile of a vector in shared memory. Of every rank it adds the pairs whose
 * indices fall there, rank after rank, and writes the tile once. Where a tile's pairs
 * begin is searched for alike by the block before, so whatever the indices are, every
 * pair and its neighbour are looked at by one block, or two blocks' bounds are crossed. */

enum { SUM_TILE = 8192, SUM_PARTS_AT_ONCE = 32, SUM_RANKS_AT_ONCE = 128, SUM_PAIRS_AT_ONCE = 112 };

/* Where each rank's pairs of each part are. */
struct separate_pairs {
	gradcomp_pairs pairs[SUM_PAIRS_AT_ONCE]; /* [rank * parts + part] */

	void set(const gradcomp_pairs *from, size_t stride, size_t parts, size_t ranks)
	{
		for (size_t r = 0; r < ranks; r++)
			for (size_t p = 0; p < parts; p++)
				pairs[r * parts + p] = from[r * stride + p];
	}
	__device__ gradcomp_pairs at(unsigned r, unsigned p, unsigned parts) const { return pairs[r * parts + p]; }
};

/* The same where all ranks' lie alike, as in payloads of one length: parts are the first rank's, and others' are so many bytes
 * on. Then as many ranks as parts fit a launch. */
struct equal_pairs {
	gradcomp_pairs part[SUM_PARTS_AT_ONCE];
	ptrdiff_t idx[SUM_RANKS_AT_ONCE], val[SUM_RANKS_AT_ONCE];

	void set(const gradcomp_pairs *from, size_t stride, size_t parts, size_t ranks)
	{
		for (size_t p = 0; p < parts; p++)
			part[p] = from[p];
		for (size_t r = 0; r < ranks; r++) {
			idx[r] = ptrdiff_t(uintptr_t(from[r * stride].idx) - uintptr_t(from->idx));
			val[r] = ptrdiff_t(uintptr_t(from[r * stride].val) - uintptr_t(from->val));
		}
	}
	__device__ gradcomp_pairs at(unsigned r, unsigned p, unsigned) const
	{
		return {reinterpret_cast<const uint32_t *>(uintptr_t(part[p].idx) + uintptr_t(idx[r])),
		        reinterpret_cast<const float *>(uintptr_t(part[p].val) + uintptr_t(val[r])), part[p].k};
	}
};

template <class WHERE> struct pair_lists {
	gradcomp_sparse part[SUM_PARTS_AT_ONCE];
	WHERE where;
	uint32_t first[SUM_PARTS_AT_ONCE]; /* block of a part */
	uint32_t parts, ranks;
	int more; /* these ranks come after others */
};

static_assert(sizeof(pair_lists<separate_pairs>) + sizeof(float) + sizeof(int *) <= 4096 &&
                      sizeof(pair_lists<equal_pairs>) + sizeof(float) + sizeof(int *) <= 4096,
              "a kernel's arguments");

template <class WHERE>
static __global__ void __launch_bounds__(THREADS) sparse_sum_kernel(pair_lists<WHERE> all, float a, int *fault)
{
	SHARED(float, tile, SUM_TILE);
	SHARED(uint32_t, from, SUM_RANKS_AT_ONCE);
	SHARED(uint32_t, to, SUM_RANKS_AT_ONCE);
	unsigned p = 0;
	for (unsigned i = 1; i < all.parts; i++)
		p = all.first[i] <= blockIdx.x ? i : p;
	const gradcomp_sparse part = all.part[p];
	const size_t begin = size_t(blockIdx.x - all.first[p]) * SUM_TILE;
	const uint32_t size = part.n - begin < SUM_TILE ? uint32_t(part.n - begin) : uint32_t(SUM_TILE);
	const bool last = begin + size == part.n;
	for (unsigned i = threadIdx.x; i < size; i += THREADS)
		tile[i] = all.more ? part.y[begin + i] : 0;
	for (unsigned i = threadIdx.x; i < 2 * all.ranks; i += THREADS) {
		const gradcomp_pairs mine = all.where.at(i / 2, p, all.parts);
		if (i % 2)
			to[i / 2] = uint32_t(last ? mine.k : below(mine.idx, mine.k, uint32_t(begin + size)));
		else
			from[i / 2] = uint32_t(begin ? below(mine.idx, mine.k, uint32_t(begin)) : 0);
	}
	bool wrong = false;
	for (unsigned r = 0; r < all.ranks; r++) {
		const gradcomp_pairs mine = all.where.at(r, p, all.parts);
		__syncthreads();
		wrong |= from[r] > to[r];
		for (size_t j = from[r] + threadIdx.x; j < to[r]; j += THREADS) {
			const uint32_t at = mine.idx[j];
			const float v = mine.val[j];
			wrong |= (j + 1 < mine.k && at >= mine.idx[j + 1]) || key_of(v) >= KEY_INF;
			if (at >= begin && at - begin < size)
				tile[at - begin] += a * v;
			else
				wrong = true;
		}
	}
	__syncthreads();
	for (unsigned i = threadIdx.x; i < size; i += THREADS)
		part.y[begin + i] = tile[i];
	if (wrong)
		*fault = 1;
}

static size_t tiles_of(uint64_t n)
{
	return (n + SUM_TILE - 1) / SUM_TILE;
}

/* A vector of no numbers has no tile; any pair of it is one too many. */
static __global__ void set_fault(int *fault)
{
	if (!threadIdx.x)
		*fault = 1;
}

template <class WHERE>
static void sum_some(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs, size_t stride,
                     size_t ranks, bool more, float a, int *fault)
{
	pair_lists<WHERE> all = {};
	size_t blocks = 0, beyond = 0;
	all.parts = uint32_t(parts);
	all.ranks = uint32_t(ranks);
	all.more = more;
	all.where.set(pairs, stride, parts, ranks);
	for (size_t p = 0; p < parts; p++) {
		all.part[p] = part[p];
		all.first[p] = uint32_t(blocks);
		blocks += tiles_of(part[p].n);
		for (size_t r = 0; r < ranks; r++)
			beyond += part[p].n ? 0 : pairs[r * stride + p].k;
	}
	if (blocks)
		launch(sparse_sum_kernel<WHERE>, unsigned(blocks), THREADS, 0, queue, all, a, fault);
	if (beyond)
		launch(set_fault, 1, WARP, 0, queue, fault);
}

template <class WHERE>
static void sum_all(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs, size_t ranks,
                    size_t parts_at_once, size_t ranks_at_once, float a, int *fault)
{
	for (size_t p = 0; p < parts; p += parts_at_once) {
		const size_t some = parts - p < parts_at_once ? parts - p : parts_at_once;
		size_t r = 0;
		do {
			const size_t now = ranks - r < ranks_at_once ? ranks - r : ranks_at_once;
			sum_some<WHERE>(queue, part + p, some, pairs + r * parts + p, parts, now, r > 0, a, fault);
			r += ranks_at_once;
		} while (r < ranks);
	}
}

/* Returns true where the pairs of all ranks lie as the first rank's. */
static bool lie_alike(const gradcomp_pairs *pairs, size_t parts, size_t ranks)
{
	const auto from = [](const void *p, const void *first) { return uintptr_t(p) - uintptr_t(first); };
	for (size_t r = 1; r < ranks; r++)
		for (size_t p = 0; p < parts; p++) {
			const gradcomp_pairs *const mine = pairs + r * parts;
			if (mine[p].k != pairs[p].k || from(mine[p].idx, mine->idx) != from(pairs[p].idx, pairs->idx) ||
			    from(mine[p].val, mine->val) != from(pairs[p].val, pairs->val))
				return false;
		}
	return ranks > 0;
}

extern "C" void sparse_sum_cuda(void *queue, const gradcomp_sparse *part, size_t parts, const gradcomp_pairs *pairs,
                                size_t ranks, float a, int *fault)
{
	const size_t most = SUM_PAIRS_AT_ONCE, ranks_at_once = ranks < most ? ranks : most,
		     fit = ranks_at_once ? most / ranks_at_once : most;
	if (lie_alike(pairs, parts, ranks))
		sum_all<equal_pairs>(queue, part, parts, pairs, ranks, SUM_PARTS_AT_ONCE, SUM_RANKS_AT_ONCE, a, fault);
	else
		sum_all<separate_pairs>(queue, part, parts, pairs, ranks,
		                        fit < SUM_PARTS_AT_ONCE ? fit : size_t(SUM_PARTS_AT_ONCE),
		                        ranks ? ranks_at_once : 1, a, fault);
}

/* Makes gTop-k's sum.
 *
 * Every pair of a and of b finds its place in the union by a binary search in the
 * other. Where both have an index, a's place gets the sum and b's stays a hole. What
 * is selected by is a key that is one more than the sum's, and 0 for a hole. What is not
 * finite is above all that is. */

struct merging {
	uint32_t *idx;
	float *val, *key;
	void *select;
};

static merging merge_layout(void *scratch, size_t k)
{
	uint32_t *p = static_cast<uint32_t *>(scratch);
	return merging{p, reinterpret_cast<float *>(p + 2 * k), reinterpret_cast<float *>(p + 4 * k),
	               p + (6 * k + 15) / 16 * 16};
}

static __global__ void __launch_bounds__(THREADS)
	unite(merging m, const uint32_t *a_idx, const float *a_val, const uint32_t *b_idx, const float *b_val, size_t k)
{
	for (size_t t = thread_id(); t < 2 * k; t += thread_count()) {
		const bool is_a = t < k;
		const size_t i = is_a ? t : t - k;
		const uint32_t *other = is_a ? b_idx : a_idx, index = is_a ? a_idx[i] : b_idx[i];
		const size_t j = below(other, k, index);
		const bool both = j < k && other[j] == index;
		const bool hole = both && !is_a;
		/* b's own place is behind a's. */
		const size_t at = i + j + hole;
		const float v = is_a ? both ? a_val[i] + b_val[j] : a_val[i] : b_val[i];
		m.idx[at] = hole ? GRADCOMP_NO_INDEX : index;
		m.val[at] = v;
		const uint32_t key = key_of(v) < KEY_INF ? key_of(v) : uint32_t(KEY_INF);
		m.key[at] = bits_float(hole ? 0 : key + 1);
	}
}

static __global__ void __launch_bounds__(SELECT_THREADS)
	part(select_room r, merging m, uint32_t *idx, float *val, size_t k)
{
	SHARED(uint32_t, room, WARP);
	const size_t n = 2 * k;
	const size_t size = segment_size(n), from = blockIdx.x * size, to = from + size < n ? from + size : n;
	const counts above = counts_before(r.above, blockIdx.x, gridDim.x, room);
	const counts ties = counts_before(r.middle, blockIdx.x, gridDim.x, room);
	const uint64_t take = k - above.y;
	const uint32_t high = r.s->above, low = r.s->low;
	walk<true>(
		m.key, from, to, counts{above.x, ties.x},
		[=](uint32_t key) { return key >= high  ? ABOVE
		                           : key >= low ? MIDDLE
		                                        : LEFT_OUT; },
		[=](size_t i, int kind, uint32_t a, uint32_t t) {
			if (kind == MIDDLE && t >= take)
				return;
			const size_t at = a + (t < take ? t : take);
			idx[at] = m.idx[i];
			val[at] = m.val[i];
		});
}

/* Counts by the same walk the pairs that are left: all below the cut, and the ties that were not taken. */
static __global__ void __launch_bounds__(SELECT_THREADS) count_left(select_room r, merging m, size_t k)
{
	SHARED(uint32_t, room, WARP);
	const size_t n = 2 * k;
	const size_t size = segment_size(n), from = blockIdx.x * size, to = from + size < n ? from + size : n;
	uint32_t c = 0;
	for (size_t i = from + threadIdx.x; i < to; i += SELECT_THREADS)
		c += key_of(m.key[i]) > 0 && key_of(m.key[i]) < r.s->low;
	c = block_fold(c, sum_of(), room);
	if (!threadIdx.x)
		r.digit0[blockIdx.x] = c;
}

static __global__ void __launch_bounds__(SELECT_THREADS)
	leave(select_room r, merging m, uint32_t *left_idx, float *left_val, size_t k)
{
	SHARED(uint32_t, room, WARP);
	const size_t n = 2 * k;
	const size_t size = segment_size(n), from = blockIdx.x * size, to = from + size < n ? from + size : n;
	const counts above = counts_before(r.above, blockIdx.x, gridDim.x, room);
	const counts ties = counts_before(r.middle, blockIdx.x, gridDim.x, room);
	const counts less = counts_before(r.digit0, blockIdx.x, gridDim.x, room);
	const uint64_t take = k - above.y, end = less.y + (ties.y - take);
	const uint32_t high = r.s->above, low = r.s->low;
	walk<true>(
		m.key, from, to, counts{less.x, ties.x},
		[=](uint32_t key) { return key >= high || !key ? LEFT_OUT
		                           : key >= low        ? MIDDLE
		                                               : ABOVE; },
		[=](size_t i, int kind, uint32_t b, uint32_t t) {
			if (kind == MIDDLE && t < take)
				return;
			const size_t at = b + (t > take ? t - take : 0);
			left_idx[at] = m.idx[i];
			left_val[at] = m.val[i];
		});
	for (size_t i = end + thread_id(); i < k; i += thread_count()) {
		left_idx[i] = GRADCOMP_NO_INDEX;
		left_val[i] = 0;
	}
}

extern "C" size_t sparse_merge_scratch_cuda(size_t k)
{
	return (6 * k + 15) / 16 * 64 + select_scratch(2 * k, 2 * k);
}

extern "C" void sparse_merge_cuda(void *queue, uint32_t *idx, float *val, uint32_t *left_idx, float *left_val,
                                  const uint32_t *a_idx, const float *a_val, const uint32_t *b_idx, const float *b_val,
                                  size_t k, void *scratch)
{
	if (!k)
		return;
	const merging m = merge_layout(scratch, k);
	/* 2 k of 2 k: no candidates, whose layout would depend on k. */
	const select_room r = select_layout(m.select, 2 * k, 2 * k);
	launch(unite, blocks_of(2 * k), THREADS, 0, queue, m, a_idx, a_val, b_idx, b_val, k);
	select_key(queue, r, m.key, 2 * k, k, false);
	select_count(queue, r, m.key, 2 * k);
	launch(part, r.segments, SELECT_THREADS, 0, queue, r, m, idx, val, k);
	launch(count_left, r.segments, SELECT_THREADS, 0, queue, r, m, k);
	launch(leave, r.segments, SELECT_THREADS, 0, queue, r, m, left_idx, left_val, k);
}
