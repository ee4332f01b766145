/* Numbers in few bits whose levels are given. A table is an argument of the kernel, and is put
 * where threads that want different levels do not wait for each other. */
#include "operators/cuda/cuda_quantise.h"

enum { SHORT = 1024 };

INLINE void take_table(float *to, const float *from, unsigned levels)
{
	for (unsigned c = threadIdx.x; c <= levels; c += THREADS)
		to[c] = from[c];
	__syncthreads();
}

/* The highest code whose edge is below x, 0 <= x <= 1. */
INLINE int code_below(const float *edge, unsigned levels, float x)
{
	unsigned below = 0, above = levels + 1;
	while (above - below > 1) {
		const unsigned middle = (below + above) / 2;
		if (x > edge[middle])
			below = middle;
		else
			above = middle;
	}
	return int(below);
}

/* BLOCK: all of the thread block at one block of numbers; else a warp. */
template <bool BLOCK>
static __global__ void __launch_bounds__(THREADS)
	levels_kernel(uint8_t *tops, uint8_t *codes, const float *x, size_t n, gradcomp_levels l)
{
	SHARED(float, room, WARP);
	SHARED(float, edge, 128);
	take_table(edge, l.edge, l.levels);
	const size_t blocks = (n + l.block - 1) / l.block;
	const unsigned me = BLOCK ? threadIdx.x : lane_id(), lanes = BLOCK ? THREADS : WARP;
	const size_t step = BLOCK ? gridDim.x : size_t(gridDim.x) * (THREADS / WARP);
	for (size_t b = BLOCK ? blockIdx.x : size_t(blockIdx.x) * (THREADS / WARP) + warp_id(); b < blocks; b += step) {
		const size_t from = b * l.block, to = from + l.block < n ? from + l.block : n;
		float top = 0;
		for (size_t i = from + me; i < to; i += lanes)
			top = largest_of()(bits_float(key_of(x[i])), top);
		if (BLOCK) {
			top = block_fold(top, largest_of(), room);
			__syncthreads();
		} else {
			top = warp_fold(top, largest_of());
		}
		top = top < 0x1.fffffep127f ? top : 0x1.fffffep127f;
		if (!me)
			store_word(tops + b * sizeof top, float_bits(top), 4);
		for (size_t i = from + 4 * size_t(me); i < to; i += 4 * size_t(lanes)) {
			const unsigned count = to - i < 4 ? unsigned(to - i) : 4;
			uint32_t word = 0;
#pragma unroll
			for (unsigned j = 0; j < 4; j++) {
				const float v = j < count ? x[i + j] : 0;
				const int level = top > 0 ? code_below(edge, l.levels, bits_float(key_of(v)) / top) : 0;
				word |= (uint32_t(v < 0 ? -level : level) & ((1u << l.bits) - 1)) << l.bits * j;
			}
			store_word(codes + i / 4 * l.bits / 2, word, unsigned(code_bytes(count, l.bits)));
		}
	}
}

extern "C" void levels_pack_cuda(void *queue, void *out, const float *x, size_t n, const gradcomp_levels *l)
{
	const size_t blocks = (n + l->block - 1) / l->block;
	uint8_t *tops = static_cast<uint8_t *>(out), *codes = tops + blocks * sizeof(float);
	if (n && l->block > SHORT)
		launch(levels_kernel<true>, blocks_for(blocks, 1, 1 << 20), THREADS, 0, queue, tops, codes, x, n, *l);
	else if (n)
		launch(levels_kernel<false>, blocks_for(blocks, THREADS / WARP, 1 << 20), THREADS, 0, queue, tops,
		       codes, x, n, *l);
}

template <bool ADD>
static __global__ void __launch_bounds__(THREADS)
	levels_value_kernel(float *y, float a, const uint8_t *tops, const uint8_t *codes, size_t n, gradcomp_levels l)
{
	SHARED(float, value, 128);
	take_table(value, l.value, l.levels);
	for (size_t i = thread_id(); i < n; i += thread_count()) {
		const unsigned each = 8 / l.bits;
		const int c = code_of(codes[i / each], unsigned(i % each), l.bits);
		const unsigned level = unsigned(c < 0 ? -c : c);
		const float top = load_float(tops + block_of(i, l.block / 32) * sizeof(float));
		float v = top * value[level < l.levels ? level : l.levels];
		v = c < 0 ? -v : v;
		if (ADD)
			y[i] += a * v;
		else
			y[i] = v;
	}
}

template <bool ADD>
static void levels_values(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_levels *l)
{
	const uint8_t *tops = static_cast<const uint8_t *>(in),
		      *codes = tops + (n + l->block - 1) / l->block * sizeof(float);
	if (n)
		launch(levels_value_kernel<ADD>, blocks_for(n, THREADS * 4, 1 << 20), THREADS, 0, queue, y, a, tops,
		       codes, n, *l);
}

extern "C" void levels_read_cuda(void *queue, float *y, const void *in, size_t n, const gradcomp_levels *l)
{
	levels_values<false>(queue, y, 0, in, n, l);
}

extern "C" void levels_add_cuda(void *queue, float *y, float a, const void *in, size_t n, const gradcomp_levels *l)
{
	levels_values<true>(queue, y, a, in, n, l);
}
