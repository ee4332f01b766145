/* Numbers in few bits, block by block (QSGD, Alistarh et al. 2017, with the Euclidean
 * norm; block absmax otherwise). A warp has a short block, and keeps its numbers in
 * registers; all warps of a thread block have a long one, which is read twice, the second
 * time from a cache. */
#include "operators/cuda/cuda_quantise.h"
#include "operators/cuda/each.h"

enum { SHORT = 1024 };

/* Quotients are rounded by adding this: the last bit of the sum is worth 1. */
#define ROUNDER 0x1.8p23f

/* The largest step whose product with the levels is finite. */
INLINE float largest_step(float levels)
{
	const float s = 0x1.fffffep127f / levels;
	return s * levels <= 0x1.fffffep127f ? s : bits_float(float_bits(s) - 1);
}

/* The step of a block from the key of its largest magnitude, or from its sum of squares. */
INLINE float step_of(uint32_t most, double squares, const quantiser &q)
{
	const float levels = float(q.levels), limit = largest_step(levels);
	float step;
	if (q.norm == GRADCOMP_NORM_ABSMAX_OR_NAN && most >= KEY_INF)
		return bits_float(NAN_SCALE);
	if (q.norm == GRADCOMP_NORM_GIVEN)
		step = *q.given;
	else {
		if (q.norm == GRADCOMP_NORM_L2) {
			const double s = sqrt(squares) / levels;
			step = s < limit ? float(s) : limit;
		} else
			step = bits_float(most) / levels;
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

typedef pack<float, 4> four;

/* Numbers i .. i + 3, 0 from `to` on. `whole`: x + i stands on a boundary of four. */
INLINE four load_four(const float *x, size_t i, size_t to, bool whole)
{
	if (whole && i + 4 <= to)
		return load_pack<float, 4>(x, i);
	four v;
#pragma unroll
	for (int j = 0; j < 4; j++)
		v.at[j] = i + j < to ? x[i + j] : 0;
	return v;
}

/* The codes of number i and up to three more; that of 0 is 0. */
INLINE void code_four(uint8_t *codes, const four &v, size_t i, size_t to, float step, const quantiser &q)
{
	const unsigned count = to - i < 4 ? unsigned(to - i) : 4;
	float u[4] = {0};
	uint32_t word = 0;
	if (step > 0) {
		if (q.rounding == GRADCOMP_TO_EITHER)
			draw_uniform<4>(u, q.d, i);
#pragma unroll
		for (unsigned j = 0; j < 4; j++)
			word |= (uint32_t(code(v.at[j], u[j], step, float(q.levels), q.rounding)) &
			         ((1u << q.bits) - 1))
			        << q.bits * j;
	}
	store_word(codes + i / 4 * q.bits / 2, word, unsigned(code_bytes(count, q.bits)));
}

/* A warp a block of at most 128 * FOURS numbers. */
template <int FOURS>
static __global__ void __launch_bounds__(THREADS)
	quantise_short(uint8_t *steps, uint8_t *codes, const float *x, size_t n, quantiser q, bool whole)
{
	const size_t size = size_t(q.groups) * 32, blocks = (n + size - 1) / size;
	for (size_t b = thread_id() / WARP; b < blocks; b += thread_count() / WARP) {
		const size_t from = b * size, to = from + size < n ? from + size : n;
		four v[FOURS];
		uint32_t most = 0;
		double squares = 0;
#pragma unroll
		for (int f = 0; f < FOURS; f++)
			v[f] = load_four(x, from + 4 * (f * WARP + lane_id()), to, whole);
#pragma unroll
		for (int f = 0; f < FOURS; f++)
#pragma unroll
			for (int j = 0; j < 4; j++)
				if (q.norm == GRADCOMP_NORM_L2)
					squares += double(v[f].at[j]) * v[f].at[j];
				else
					most = largest_of()(key_of(v[f].at[j]), most);
		most = warp_fold(most, largest_of());
		if (q.norm == GRADCOMP_NORM_L2)
			squares = warp_fold(squares, sum_of());
		const float step = step_of(most, squares, q);
		if (q.norm != GRADCOMP_NORM_GIVEN && !lane_id())
			store_word(steps + b * sizeof step, float_bits(step), 4);
#pragma unroll
		for (int f = 0; f < FOURS; f++) {
			const size_t i = from + 4 * (f * WARP + lane_id());
			if (i < to)
				code_four(codes, v[f], i, to, step, q);
		}
	}
}

/* All of a thread block at one block of numbers. */
static __global__ void __launch_bounds__(THREADS)
	quantise_long(uint8_t *steps, uint8_t *codes, const float *x, size_t n, quantiser q, bool whole)
{
	SHARED(uint32_t, room, WARP);
	SHARED(double, room2, WARP);
	const size_t size = size_t(q.groups) * 32, blocks = (n + size - 1) / size;
	for (size_t b = blockIdx.x; b < blocks; b += gridDim.x) {
		const size_t from = b * size, to = from + size < n ? from + size : n;
		uint32_t most = 0;
		double squares = 0;
		if (q.norm == GRADCOMP_NORM_L2)
			for (size_t i = from + threadIdx.x; i < to; i += THREADS)
				squares += double(x[i]) * x[i];
		else if (q.norm != GRADCOMP_NORM_GIVEN)
			for (size_t i = from + threadIdx.x; i < to; i += THREADS)
				most = largest_of()(key_of(x[i]), most);
		most = block_fold(most, largest_of(), room);
		squares = block_fold(squares, sum_of(), room2);
		/* No barrier: before either room is written again all threads have passed the other one's. */
		const float step = step_of(most, squares, q);
		if (q.norm != GRADCOMP_NORM_GIVEN && !threadIdx.x)
			store_word(steps + b * sizeof step, float_bits(step), 4);
#pragma unroll 2
		for (size_t i = from + 4 * size_t(threadIdx.x); i < to; i += 4 * THREADS)
			code_four(codes, load_four(x, i, to, whole), i, to, step, q);
	}
}

extern "C" void quantise_cuda(void *queue, void *out, const float *x, size_t n, const gradcomp_quantiser *q)
{
	if (!n || !quantised_bytes_cuda(q, n))
		return;
	uint8_t *steps = static_cast<uint8_t *>(out), *codes = steps + step_bytes(q, n);
	const size_t blocks = (n + q->block - 1) / q->block;
	const bool is_short = q->block <= SHORT, whole = uintptr_t(x) % sizeof(four) == 0;
	launch(!is_short        ? quantise_long
	       : q->block > 512 ? quantise_short<8>
	       : q->block > 256 ? quantise_short<4>
	       : q->block > 128 ? quantise_short<2>
	                        : quantise_short<1>,
	       blocks_for(blocks, is_short ? THREADS / WARP : 1, 1 << 20), THREADS, 0, queue, steps, codes, x, n,
	       quantiser_of(q), whole);
}
