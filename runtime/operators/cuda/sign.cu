/* One bit a number, and the two values a run of numbers is rebuilt from (1-bit SGD,
 * Seide et al. 2014). */
#include "operators/cuda/each.h"

/* Runs of `segment` numbers take whole words. */
struct runs {
	size_t segment, words;
};

static runs runs_of(size_t segment)
{
	return runs{segment, (segment + 31) / 32};
}

INLINE size_t quotient(size_t a, size_t b)
{
	return (a | b) <= UINT32_MAX ? uint32_t(a) / uint32_t(b) : a / b;
}

/* Returns true when word w has the numbers from 32 w on, in whichever run. */
static bool in_words(size_t n, size_t segment)
{
	return segment % 32 == 0 || segment >= n;
}

enum { PACK_WORDS = 8 };

/* A warp makes PACK_WORDS words. PLAIN: in_words(). */
template <bool PLAIN>
static __global__ void __launch_bounds__(THREADS)
	pack_kernel(uint32_t *bits, const float *x, size_t n, size_t words, runs r)
{
	const size_t warps = thread_count() / WARP, l = lane_id();
	for (size_t w = thread_id() / WARP * PACK_WORDS; w < words; w += warps * PACK_WORDS) {
		bool below[PACK_WORDS];
		uint32_t mine = 0;
#pragma unroll
		for (int u = 0; u < PACK_WORDS; u++) {
			const size_t run = PLAIN ? 0 : quotient(w + u, r.words), at = (w + u - run * r.words) * 32 + l;
			const size_t i = run * r.segment + at;
			below[u] = (PLAIN || at < r.segment) && i < n && x[i] < 0;
		}
#pragma unroll
		for (int u = 0; u < PACK_WORDS; u++) {
			const uint32_t word = __ballot_sync(ALL_LANES, below[u]);
			mine = l == unsigned(u) ? word : mine;
		}
		if (l < PACK_WORDS && w + l < words)
			bits[w + l] = mine;
	}
}

extern "C" void sign_pack_cuda(void *queue, uint32_t *bits, const float *x, size_t n, size_t segment)
{
	const size_t words = sign_words_cuda(n, segment);
	if (words)
		launch(in_words(n, segment) ? pack_kernel<true> : pack_kernel<false>,
		       blocks_for(words, THREADS / WARP * PACK_WORDS, 1 << 20), THREADS, 0, queue, bits, x, n, words,
		       runs_of(segment));
}

/* A block a run. */
static __global__ void __launch_bounds__(4 * THREADS)
	means_kernel(float *pairs, const float *x, size_t n, size_t segment)
{
	enum { AT_ONCE = 4 };
	SHARED(double, room_above, WARP);
	SHARED(double, room_below, WARP);
	SHARED(u64, room_count, WARP);
	const size_t all = (n + segment - 1) / segment;
	for (size_t run = blockIdx.x; run < all; run += gridDim.x) {
		const size_t from = run * segment, to = from + segment < n ? from + segment : n;
		double above = 0, below = 0;
		u64 negative = 0;
		for (size_t i = from + threadIdx.x; i < to; i += size_t(AT_ONCE) * blockDim.x) {
			float v[AT_ONCE];
#pragma unroll
			for (unsigned u = 0; u < AT_ONCE; u++)
				v[u] = i + u * blockDim.x < to ? x[i + u * blockDim.x] : 0;
#pragma unroll
			for (int u = 0; u < AT_ONCE; u++) {
				const bool less = v[u] < 0;
				above += less ? 0 : v[u];
				below += less ? v[u] : 0;
				negative += less;
			}
		}
		above = block_fold(above, sum_of(), room_above);
		below = block_fold(below, sum_of(), room_below);
		negative = block_fold(negative, sum_of(), room_count);
		if (!threadIdx.x) {
			pairs[2 * run] = negative < to - from ? float(above / double(to - from - negative)) : 0;
			pairs[2 * run + 1] = negative ? float(below / double(negative)) : 0;
		}
		/* No barrier: before a room is written again all threads have passed another one's. */
	}
}

extern "C" void sign_means_cuda(void *queue, float *pairs, const float *x, size_t n, size_t segment)
{
	if (n && segment)
		launch(means_kernel, blocks_for((n + segment - 1) / segment, 1, 1 << 20),
		       segment > 8 * THREADS ? 4 * THREADS : THREADS, 0, queue, pairs, x, n, segment);
}

template <bool ADD> struct rebuilt : element_wise {
	const uint32_t *bits;
	const float *pairs;
	runs r;
	float a;
	rebuilt(const uint32_t *b, const float *p, size_t segment, float factor)
	    : bits(b), pairs(p), r(runs_of(segment)), a(factor)
	{
	}
	__device__ float operator()(nothing, size_t i, int, float x, absent) const
	{
		const size_t run = quotient(i, r.segment), at = i - run * r.segment;
		const float v = pairs[2 * run + (bits[run * r.words + at / 32] >> at % 32 & 1)];
		return ADD ? x + a * v : x - v;
	}
};

/* The same where in_words() says so: numbers of a pack have one word and one run. */
template <bool ADD> struct rebuilt_words {
	struct of_pack {
		uint32_t word;
		float above, below;
	};
	const uint32_t *bits;
	const float *pairs;
	size_t segment; /* 0: one run */
	float a;
	template <int W> __device__ of_pack ahead(size_t i) const
	{
		const size_t run = segment ? quotient(i, segment) : 0;
		return {bits[i / 32] >> i % 32, pairs[2 * run], pairs[2 * run + 1]};
	}
	__device__ float operator()(const of_pack &p, size_t, int w, float x, absent) const
	{
		const float v = p.word >> w & 1 ? p.below : p.above;
		return ADD ? x + a * v : x - v;
	}
};

template <bool ADD>
static void rebuild(void *queue, float *y, float a, const float *x, const uint32_t *bits, const float *pairs, size_t n,
                    size_t segment)
{
	if (in_words(n, segment))
		each(queue, rebuilt_words<ADD>{bits, pairs, segment < n ? segment : 0, a}, y, x, no_operand, n);
	else
		each(queue, rebuilt<ADD>(bits, pairs, segment, a), y, x, no_operand, n);
}

extern "C" void sign_add_cuda(void *queue, float *y, float a, const uint32_t *bits, const float *pairs, size_t n,
                              size_t segment)
{
	if (segment)
		rebuild<true>(queue, y, a, y, bits, pairs, n, segment);
}

extern "C" void sign_error_cuda(void *queue, float *e, const float *x, const uint32_t *bits, const float *pairs,
                                size_t n, size_t segment)
{
	if (segment)
		rebuild<false>(queue, e, 0, x, bits, pairs, n, segment);
}

static __global__ void __launch_bounds__(THREADS) pairs_kernel(float *pairs, const float *values, size_t count)
{
	for (size_t s = thread_id(); s < count; s += thread_count()) {
		pairs[2 * s] = values[s];
		pairs[2 * s + 1] = -values[s];
	}
}

extern "C" void sign_pairs_cuda(void *queue, float *pairs, const float *values, size_t count)
{
	if (count)
		launch(pairs_kernel, blocks_for(count, THREADS, 1 << 20), THREADS, 0, queue, pairs, values, count);
}
