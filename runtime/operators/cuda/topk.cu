/* The operators that select: top-k and MSTopK. */
#include "operators/cuda/cuda_random.h"
#include "operators/cuda/cuda_select.h"

/* MSTopK takes a run of the others that begins at a number drawn; the others take
 * the first ones. */
struct run {
	int drawn;
	drawing d;
};

static __global__ void __launch_bounds__(SELECT_THREADS, SELECT_BLOCKS)
	take(select_room r, const float *x, size_t n, size_t k, run how, uint32_t *idx, float *val)
{
	SHARED(uint32_t, room, WARP);
	const source src = source_of(r, x, n);
	const size_t size = segment_size(src.n), from = blockIdx.x * size,
		     to = from + size < src.n ? from + size : src.n;
	counts above = counts_before(r.above, blockIdx.x, gridDim.x, room);
	counts middle = counts_before(r.middle, blockIdx.x, gridDim.x, room);
	uint64_t run = above.y >= k ? 0 : k - above.y, first = 0;
	run = run < middle.y ? run : middle.y;
	if (how.drawn) {
		uint32_t w[4];
		draw_block(w, how.d, 0);
		first = uint64_t(w[0] >> 8) * (uint64_t(above.y) + middle.y - k + 1) >> 24;
	}
	const uint32_t high = r.s->above, low = r.s->low;
	walk<true>(
		src.val, from, to, counts{above.x, middle.x},
		[=](uint32_t key) { return key >= high  ? ABOVE
		                           : key >= low ? MIDDLE
		                                        : LEFT_OUT; },
		[=](size_t i, int kind, uint32_t a, uint32_t m) {
			const uint64_t in_run = m < first ? 0 : m - first < run ? m - first : run;
			const uint64_t at = a + in_run;
			if ((kind == MIDDLE && (m < first || m - first >= run)) || at >= k)
				return;
			val[at] = src.val[i];
			idx[at] = src.idx ? src.idx[i] : uint32_t(i);
		});
}

static __global__ void __launch_bounds__(THREADS) take_all(uint32_t *idx, float *val, const float *x, size_t n)
{
	for (size_t i = thread_id(); i < n; i += thread_count()) {
		idx[i] = uint32_t(i);
		val[i] = x[i];
	}
}

static void all_of(void *queue, uint32_t *idx, float *val, const float *x, size_t n)
{
	if (n)
		launch(take_all, blocks_for(n, THREADS, 1 << 20), THREADS, 0, queue, idx, val, x, n);
}

extern "C" size_t topk_scratch_cuda(size_t n, size_t k)
{
	return select_scratch(n, k);
}

extern "C" void topk_cuda(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, void *scratch)
{
	if (k >= n) {
		all_of(queue, idx, val, x, n);
		return;
	}
	if (!k)
		return;
	const select_room r = select_layout(scratch, n, k);
	select_key(queue, r, x, n, k, false);
	select_count(queue, r, x, n);
	launch(take, r.segments, SELECT_THREADS, 0, queue, r, x, n, k, run{0, {}}, idx, val);
}

/* The exact sum in words of 32 bits: part[e] is in units of 2^(e - 150), e >= 1. A lane adds
 * what falls into its word; then one carries. */
enum { SUM_WORDS = (SUM_PARTS + 64) / 32 };

INLINE u64 word_sum(const u64 *part, int word)
{
	const int first = 32 * word - 63, last = 32 * word + 31;
	u64 s = 0;
#pragma unroll 4
	for (int i = first < 0 ? 0 : first; i <= last && i + 1 < SUM_PARTS; i++) {
		const int down = 32 * word - i;
		s += down >= 0 ? part[i + 1] >> down & UINT32_MAX : part[i + 1] << -down & UINT32_MAX;
	}
	return s;
}

/* The mean from it, rounded once, to even. Then the mean's key is what select_count() counts. */
static __global__ void mean_kernel(select_room r, double n)
{
	SHARED(u64, part, SUM_PARTS);
	SHARED(u64, sum, SUM_WORDS + 2);
	const int l = int(lane_id());
	for (unsigned i = threadIdx.x; i < SUM_PARTS; i += WARP)
		part[i] = r.sum[i];
	__syncwarp();
	if (l < SUM_WORDS + 2)
		sum[l] = l < SUM_WORDS ? word_sum(part, l) : 0;
	__syncwarp();
	if (l)
		return;
	int top = 0, beyond = 0;
	for (int w = 0; w < SUM_WORDS; w++) {
		sum[w + 1] += sum[w] >> 32;
		sum[w] &= UINT32_MAX;
		top = sum[w] ? 32 * w + 31 - __clz(int(sum[w])) : top;
	}
	const int low = top < 53 ? 0 : top - 52, at = low / 32, bits = low % 32;
	u64 mantissa = (sum[at] | sum[at + 1] << 32) >> bits | (bits ? sum[at + 2] << (64 - bits) : 0);
	mantissa &= (u64(1) << 53) - 1;
	if (low) {
		const int half = low - 1;
		for (int w = 0; w < half / 32; w++)
			beyond |= sum[w] != 0;
		beyond |= (sum[half / 32] & ((u64(1) << half % 32) - 1)) != 0;
		if (sum[half / 32] >> half % 32 & 1 && (beyond || mantissa & 1))
			mantissa++;
	}
	const uint64_t unit = uint64_t(low - 149 + 1023) << 52;
	double scale;
	memcpy(&scale, &unit, sizeof scale);
	r.s->mean = double(mantissa) * scale / n;
	r.s->above = r.s->low = reach_of(r.s->mean);
}

/* More than k reach a threshold just when the (k+1)-th largest, v, does. */
static __global__ void __launch_bounds__(SELECT_THREADS) bisect(select_room r, size_t k, int samplings)
{
	SHARED(uint32_t, room, WARP);
	const uint32_t reach_mean = counts_before(r.above, 0, r.segments, room).y;
	if (threadIdx.x)
		return;
	const double v = bits_float(r.s->prefix), mean = r.s->mean;
	const bool few = v < mean && reach_mean < k;
	const double from = few ? 0 : mean, span = few ? mean : bits_float(r.s->top) - mean;
	uint32_t taken = few ? reach_of(mean) : KEY_INF, open = 0;
	double lo = 0, hi = 1;
	for (int s = 0; s < samplings; s++) {
		const double q = (lo + hi) / 2, t = from + q * span;
		if (q == lo || q == hi)
			break;
		if (v >= t) {
			lo = q;
			open = reach_of(t);
		} else {
			hi = q;
			taken = reach_of(t);
		}
	}
	r.s->above = taken;
	r.s->low = open;
	if (open < r.s->bin << 19)
		r.s->picked = 0;
}

extern "C" size_t mstopk_scratch_cuda(size_t n, size_t k)
{
	return select_scratch(n, k + 1);
}

extern "C" void mstopk_cuda(void *queue, uint32_t *idx, float *val, const float *x, size_t n, size_t k, int samplings,
                            uint64_t seed, uint64_t stream, void *scratch)
{
	if (k >= n) {
		all_of(queue, idx, val, x, n);
		return;
	}
	if (!k)
		return;
	const select_room r = select_layout(scratch, n, k + 1);
	select_key(queue, r, x, n, k + 1, true);
	launch(mean_kernel, 1, WARP, 0, queue, r, double(n));
	select_count(queue, r, x, n);
	launch(bisect, 1, SELECT_THREADS, 0, queue, r, k, samplings);
	select_count(queue, r, x, n);
	launch(take, r.segments, SELECT_THREADS, 0, queue, r, x, n, k, run{1, {seed, stream, 0}}, idx, val);
}
