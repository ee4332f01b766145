/* Codings of indices. A word of output is made by one thread, which finds its first index by
 * bisection; to read a string, its bits are counted by segments, and each segment then writes
 * its own indices. */
#include "operators/cuda/cuda_device.h"

#include "operators/cpu/index_strings.h"

enum { SEGMENTS = 528 };

/* The bit that stands for index j. */
INLINE uint64_t place_of(const uint32_t *idx, size_t j, const index_string &s)
{
	return (uint64_t(idx[j]) >> s.low) + (s.by_rank ? j : 0);
}

INLINE uint32_t low_word(const uint32_t *idx, size_t k, uint64_t word, const index_string &s)
{
	const uint64_t from = word * 32;
	const uint32_t mask = (1u << s.low) - 1;
	uint32_t made = 0;
	for (uint64_t j = from / s.low; j < k && j * s.low < from + 32; j++) {
		const uint64_t value = idx[j] & mask, at = j * s.low;
		made |= uint32_t(at >= from ? value << (at - from) : value >> (from - at));
	}
	return made;
}

INLINE uint32_t string_word(const uint32_t *idx, size_t k, uint64_t word, const index_string &s)
{
	const uint64_t from = word * 32;
	size_t j = 0;
	for (size_t left = k; left;) {
		const size_t half = left / 2;
		if (place_of(idx, j + half, s) < from) {
			j += half + 1;
			left -= half + 1;
		} else {
			left = half;
		}
	}
	uint32_t made = 0;
	for (; j < k; j++) {
		const uint64_t at = place_of(idx, j, s);
		if (at >= from + 32)
			break;
		made |= 1u << (at - from);
	}
	return made;
}

static __global__ void __launch_bounds__(THREADS)
	index_pack_kernel(uint32_t *out, const uint32_t *idx, size_t k, index_string s)
{
	for (uint64_t w = thread_id(); w < s.lows + s.words; w += thread_count())
		out[w] = w < s.lows ? low_word(idx, k, w, s) : string_word(idx, k, w - s.lows, s);
}

extern "C" void index_pack_cuda(void *queue, uint32_t *out, const uint32_t *idx, size_t d, size_t k, uint32_t coding)
{
	if (coding == GRADCOMP_INDEX_RAW)
		device_copy(queue, out, idx, k * sizeof *idx);
	if (!index_is_string(coding))
		return;
	const index_string s = index_string_of(d, k, coding);
	launch(index_pack_kernel, blocks_for(s.lows + s.words, THREADS, 1 << 20), THREADS, 0, queue, out, idx, k, s);
}

extern "C" size_t index_scratch_cuda(size_t, size_t, uint32_t coding)
{
	return index_is_string(coding) ? (SEGMENTS * sizeof(u64) + 63) / 64 * 64 : 0;
}

static __global__ void __launch_bounds__(THREADS) index_all(uint32_t *idx, size_t k)
{
	for (size_t j = thread_id(); j < k; j += thread_count())
		idx[j] = uint32_t(j);
}

/* A block's words. */
struct stretch {
	uint64_t from, to;
};

INLINE stretch stretch_of(uint64_t words)
{
	const uint64_t size = (words + gridDim.x - 1) / gridDim.x, from = blockIdx.x * size;
	return stretch{from < words ? from : words, from + size < words ? from + size : words};
}

static __global__ void __launch_bounds__(THREADS) index_count(u64 *count, const uint32_t *string, uint64_t words)
{
	SHARED(u64, room, WARP);
	const stretch mine = stretch_of(words);
	u64 c = 0;
	for (uint64_t w = mine.from + threadIdx.x; w < mine.to; w += THREADS)
		c += u64(__popc(string[w]));
	c = block_fold(c, sum_of(), room);
	if (!threadIdx.x)
		count[blockIdx.x] = c;
}

/* The lower bits of index j. */
INLINE uint32_t low_of(const uint32_t *in, uint64_t j, uint32_t low)
{
	const uint64_t at = j * low, w = at / 32;
	const unsigned shift = unsigned(at % 32);
	if (!low)
		return 0;
	uint64_t bits = in[w] >> shift;
	if (shift + low > 32)
		bits |= uint64_t(in[w + 1]) << (32 - shift);
	return uint32_t(bits) & ((1u << low) - 1);
}

static __global__ void __launch_bounds__(THREADS)
	index_read(int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k, index_string s, const u64 *count)
{
	SHARED(u64, room, WARP);
	SHARED(uint32_t, of_warp, WARP);
	const uint32_t *string = in + s.lows;
	const stretch mine = stretch_of(s.words);
	u64 before = 0, all = 0;
	for (unsigned g = threadIdx.x; g < gridDim.x; g += THREADS) {
		before += g < blockIdx.x ? count[g] : 0;
		all += count[g];
	}
	before = block_fold(before, sum_of(), room);
	__syncthreads();
	all = block_fold(all, sum_of(), room);
	if (all != k && !thread_id())
		*fault = 1;
	for (uint64_t tile = mine.from; tile < mine.to; tile += THREADS) {
		const uint64_t w = tile + threadIdx.x;
		const uint32_t word = w < mine.to ? string[w] : 0;
		const unsigned l = lane_id();
		uint32_t upto = uint32_t(__popc(word));
		for (unsigned by = 1; by < WARP; by *= 2) {
			const uint32_t more = __shfl_up_sync(ALL_LANES, upto, by);
			upto += l >= by ? more : 0;
		}
		if (l == WARP - 1)
			of_warp[warp_id()] = upto;
		__syncthreads();
		u64 j = before + upto - u64(__popc(word));
		for (unsigned v = 0; v < THREADS / WARP; v++) {
			j += v < warp_id() ? of_warp[v] : 0;
			before += of_warp[v];
		}
		for (unsigned b = 0; b < 32; b++) {
			const uint64_t at = w * 32 + b;
			if (!(word >> b & 1))
				continue;
			if (j < k) {
				const uint64_t value = (at - (s.by_rank ? j : 0)) << s.low | low_of(in, j, s.low);
				idx[j] = value < d ? uint32_t(value) : GRADCOMP_NO_INDEX;
			}
			if (at >= s.bits)
				*fault = 1;
			j++;
		}
		__syncthreads();
	}
	for (u64 j = all + thread_id(); j < k; j += thread_count())
		idx[j] = GRADCOMP_NO_INDEX;
}

extern "C" void index_unpack_cuda(void *queue, int *fault, uint32_t *idx, const uint32_t *in, size_t d, size_t k,
                                  uint32_t coding, void *scratch)
{
	if (coding == GRADCOMP_INDEX_RAW)
		device_copy(queue, idx, in, k * sizeof *idx);
	if (coding == GRADCOMP_INDEX_ALL)
		launch(index_all, blocks_for(k, THREADS, 1 << 20), THREADS, 0, queue, idx, k);
	if (!index_is_string(coding))
		return;
	const index_string s = index_string_of(d, k, coding);
	const unsigned blocks = blocks_for(s.words, 4 * THREADS, SEGMENTS);
	u64 *count = static_cast<u64 *>(scratch);
	launch(index_count, blocks, THREADS, 0, queue, count, in + s.lows, s.words);
	launch(index_read, blocks, THREADS, 0, queue, fault, idx, in, d, k, s, count);
}
