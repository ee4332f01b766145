/* Numbers in few bits, block by block (QSGD, Alistarh et al. 2017, with the Euclidean
 * norm; block absmax otherwise). A warp has a short block, all warps of a thread block
 * a long one; it is read twice, the second time from a cache. */
#include "operators/cuda/cuda_quantise.h"

enum { SHORT = 1024 };

/* Quotients are rounded by adding this: the last bit of the sum is worth 1. */
#define ROUNDER 0x1.8p23f

/* The largest step whose product with the levels is finite. */
INLINE float largest_step(float levels)
{
	const float s = 0x1.fffffep127f / levels;
	return s * levels <= 0x1.fffffep127f ? s : bits_float(float_bits(s) - 1);
}

/* The step of a block from its largest magnitude, or from its sum of squares. */
INLINE float step_of(float most, double squares, const quantiser &q)
{
	const float levels = float(q.levels), limit = largest_step(levels);
	float step;
	if (q.norm == GRADCOMP_NORM_GIVEN)
		step = *q.given;
	else {
		if (q.norm == GRADCOMP_NORM_L2) {
			const double s = sqrt(squares) / levels;
			step = s < limit ? float(s) : limit;
		} else
			step = most / levels;
		step = step < limit ? step : limit;
	}
	return step >= 0x1p-126f ? step : 0;
}

INLINE int code(float x, float u, float step, float levels, unsigned rounding)
{
	float v = x / step;
	v = v < levels ? v : levels;
	v = v > -levels ? v : -levels;
	if (rounding == GRADCOMP_TO_NEAREST)
		return int(float_bits(v + ROUNDER) - float_bits(ROUNDER));
	int c = int(v);
	if (rounding == GRADCOMP_TO_EITHER) {
		c -= float(c) > v;
		c += u < v - float(c);
	}
	return c;
}

/* Four numbers a time, from number `first` of x on, by `lanes` threads. */
INLINE void code_block(uint8_t *codes, const float *x, size_t from, size_t to, float step, const quantiser &q,
                       unsigned me, unsigned lanes)
{
	const float levels = float(q.levels);
	for (size_t i = from + 4 * size_t(me); i < to; i += 4 * size_t(lanes)) {
		const unsigned count = to - i < 4 ? unsigned(to - i) : 4;
		float u[4] = {0};
		uint32_t word = 0;
		if (step > 0) {
			if (q.rounding == GRADCOMP_TO_EITHER)
				draw_uniform<4>(u, q.d, i);
#pragma unroll
			for (unsigned j = 0; j < 4; j++)
				if (j < count)
					word |= (uint32_t(code(x[i + j], u[j], step, levels, q.rounding)) &
					         ((1u << q.bits) - 1))
					        << q.bits * j;
		}
		store_word(codes + i / 4 * q.bits / 2, word, unsigned(code_bytes(count, q.bits)));
	}
}

/* BLOCK: all of the thread block at one block of numbers; else a warp. */
template <bool BLOCK>
static __global__ void __launch_bounds__(THREADS)
quantise_kernel(uint8_t *steps, uint8_t *codes, const float *x, size_t n, quantiser q)
{
	SHARED(float, room, WARP);
	SHARED(double, room2, WARP);
	const size_t size = size_t(q.groups) * 32, blocks = (n + size - 1) / size;
	const unsigned me = BLOCK ? threadIdx.x : lane_id(), lanes = BLOCK ? THREADS : WARP;
	const size_t step_by = BLOCK ? gridDim.x : size_t(gridDim.x) * (THREADS / WARP);
	for (size_t b = BLOCK ? blockIdx.x : size_t(blockIdx.x) * (THREADS / WARP) + warp_id(); b < blocks;
	     b += step_by) {
		const size_t from = b * size, to = from + size < n ? from + size : n;
		float most = 0;
		double squares = 0;
		if (q.norm == GRADCOMP_NORM_L2)
			for (size_t i = from + me; i < to; i += lanes)
				squares += double(x[i]) * x[i];
		else if (q.norm == GRADCOMP_NORM_ABSMAX)
			for (size_t i = from + me; i < to; i += lanes)
				most = largest_of()(bits_float(key_of(x[i])), most);
		if (BLOCK) {
			most = block_fold(most, largest_of(), room);
			squares = block_fold(squares, sum_of(), room2);
			__syncthreads();
		} else {
			most = warp_fold(most, largest_of());
			squares = warp_fold(squares, sum_of());
		}
		const float step = step_of(most, squares, q);
		if (q.norm != GRADCOMP_NORM_GIVEN && !me)
			store_word(steps + b * sizeof step, float_bits(step), 4);
		code_block(codes, x, from, to, step, q, me, lanes);
	}
}

extern "C" void quantise_cuda(void *queue, void *out, const float *x, size_t n, const gradcomp_quantiser *q)
{
	if (!n || !quantised_bytes(q, n))
		return;
	uint8_t *steps = static_cast<uint8_t *>(out), *codes = steps + step_bytes(q, n);
	const size_t blocks = (n + q->block - 1) / q->block;
	if (q->block > SHORT)
		launch(quantise_kernel<true>, blocks_for(blocks, 1, 1 << 20), THREADS, 0, queue, steps, codes, x, n,
		       quantiser_of(q));
	else
		launch(quantise_kernel<false>, blocks_for(blocks, THREADS / WARP, 1 << 20), THREADS, 0, queue,
		       steps, codes, x, n, quantiser_of(q));
}
