/* Numbers as powers of two with a sign, and as floats of 8 or 4 bits whose blocks share a scale. */
#include "operators/cuda/cuda_kinds.h"
#include "operators/cuda/cuda_quantise.h"
#include "operators/cuda/each.h"

enum { LARGEST_POWER = 254, SHORT = 1024 };

/* A thread has eight numbers, whose signs are a byte. */
static __global__ void __launch_bounds__(THREADS) power_kernel(uint8_t *out, const float *x, size_t n, drawing d)
{
	for (size_t b = thread_id(); b * 8 < n; b += thread_count()) {
		uint32_t word[2] = {0, 0}, signs = 0;
		const unsigned count = n - b * 8 < 8 ? unsigned(n - b * 8) : 8;
#pragma unroll
		for (unsigned half = 0; half < 2; half++) {
			float u[4];
			draw_uniform<4>(u, d, b * 8 + half * 4);
#pragma unroll
			for (unsigned j = 0; j < 4; j++) {
				const unsigned k = half * 4 + j;
				const float v = k < count ? x[b * 8 + k] : 0;
				const uint32_t magnitude = key_of(v);
				const uint32_t e = magnitude >> 23;
				const bool up = u[j] < float(int(magnitude & 0x7fffff)) * 0x1p-23f && e < LARGEST_POWER;
				word[half] |= (e + up) << 8 * j;
				signs |= uint32_t(v < 0) << k;
			}
		}
		store_word(out + b * 8, word[0], count < 4 ? count : 4);
		if (count > 4)
			store_word(out + b * 8 + 4, word[1], count - 4);
		out[n + b] = uint8_t(signs);
	}
}

extern "C" void power_pack_cuda(void *queue, uint8_t *out, const float *x, size_t n, uint64_t seed, uint64_t stream,
                                uint64_t first)
{
	if (n)
		launch(power_kernel, blocks_for(n, 8 * THREADS, 1 << 20), THREADS, 0, queue, out, x, n,
		       drawing{seed, stream, first});
}

template <bool ADD> struct power_value : element_wise {
	const uint8_t *exponents, *signs;
	power_value(const uint8_t *in, size_t n) : exponents(in), signs(in + n) {}
	template <class A, class B> __device__ float operator()(nothing, size_t i, int, A y, B) const
	{
		const uint32_t e = exponents[i], sign = signs[i / 8] >> i % 8 & 1;
		const float v = bits_float(e << 23 | sign << 31);
		if constexpr (ADD)
			return y + v;
		else
			return v;
	}
};

extern "C" void power_read_cuda(void *queue, float *y, const uint8_t *in, size_t n, int *)
{
	each(queue, power_value<false>(in, n), y, no_operand, no_operand, n);
}

extern "C" void power_add_cuda(void *queue, float *y, const uint8_t *in, size_t n, int *)
{
	each(queue, power_value<true>(in, n), y, y, no_operand, n);
}

/* The codes of four numbers times a. */
template <class KIND> INLINE uint32_t four_codes(const float *x, unsigned count, float a)
{
	const float limit = FLOAT8_LARGEST(KIND::kind);
	uint32_t word = 0;
#pragma unroll
	for (unsigned j = 0; j < 4; j++) {
		float v = j < count && a > 0 ? x[j] * a : 0;
		if (key_of(v) < KEY_INF)
			v = v > limit ? limit : v < -limit ? -limit : v;
		word |= KIND::packed(KIND::narrow(v, 1)) << KIND::bits * j;
	}
	return word;
}

/* BLOCK: all of the thread block at one block of numbers; else a warp. */
template <class KIND, bool BLOCK>
static __global__ void __launch_bounds__(THREADS)
	float8_kernel(uint8_t *scales, uint8_t *codes, const float *x, size_t n, uint32_t block, int powers)
{
	SHARED(uint32_t, room, WARP);
	const size_t blocks = (n + block - 1) / block;
	const unsigned me = BLOCK ? threadIdx.x : lane_id(), lanes = BLOCK ? THREADS : WARP;
	const size_t step_by = BLOCK ? gridDim.x : size_t(gridDim.x) * (THREADS / WARP);
	for (size_t b = BLOCK ? blockIdx.x : size_t(blockIdx.x) * (THREADS / WARP) + warp_id(); b < blocks;
	     b += step_by) {
		const size_t from = b * block, to = from + block < n ? from + block : n;
		uint32_t most = 0;
		float scale;
		for (size_t i = from + me; i < to; i += lanes)
			most = largest_of()(key_of(x[i]), most);
		if (BLOCK) {
			most = block_fold(most, largest_of(), room);
			__syncthreads();
		} else {
			most = warp_fold(most, largest_of());
		}
		if (powers == GRADCOMP_SCALES_E8M0) {
			const uint32_t byte = float8_power_of(most, KIND::kind);
			scale = float8_power(byte);
			if (!me)
				scales[b] = uint8_t(byte);
		} else if (powers == GRADCOMP_SCALES_F32) {
			scale = float8_scale_of(most, KIND::kind);
			if (!me)
				store_word(scales + b * sizeof scale, float_bits(scale), 4);
		} else {
			/* A thread has the numbers of a byte. */
			uint8_t *const own = scales + b * (sizeof scale + block / FLOAT8_SHARE);
			const float above = float8_above_of(most);
			if (!me)
				store_word(own, float_bits(above), 4);
			for (size_t i = from + FLOAT8_SHARE * size_t(me); i < to; i += FLOAT8_SHARE * size_t(lanes)) {
				const unsigned count = to - i < FLOAT8_SHARE ? unsigned(to - i) : FLOAT8_SHARE;
				uint32_t largest = 0;
				for (unsigned j = 0; j < count; j++)
					largest = largest_of()(key_of(x[i + j]), largest);
				const uint32_t byte = float8_share_of(largest, above);
				scale = float8_share(byte, above);
				own[sizeof scale + (i - from) / FLOAT8_SHARE] = uint8_t(byte);
				for (unsigned j = 0; j < count; j += 4) {
					const unsigned some = count - j < 4 ? count - j : 4;
					store_word(codes + (i + j) * KIND::bits / 8,
					           four_codes<KIND>(x + i + j, some, scale > 0 ? 1 / scale : 0),
					           (some * KIND::bits + 7) / 8);
				}
			}
			continue;
		}
		const float a = scale > 0 ? 1 / scale : 0;
		for (size_t i = from + 4 * size_t(me); i < to; i += 4 * size_t(lanes)) {
			const unsigned count = to - i < 4 ? unsigned(to - i) : 4;
			store_word(codes + i * KIND::bits / 8, four_codes<KIND>(x + i, count, a),
			           (count * KIND::bits + 7) / 8);
		}
	}
}

template <class KIND>
static void float8_pack_as(void *queue, uint8_t *out, const float *x, size_t n, uint32_t block, int powers)
{
	const size_t blocks = (n + block - 1) / block;
	uint8_t *codes = out + gradcomp_float8_scales(n, block, uint32_t(powers));
	if (block > SHORT)
		launch(float8_kernel<KIND, true>, blocks_for(blocks, 1, 1 << 20), THREADS, 0, queue, out, codes, x, n,
		       block, powers);
	else
		launch(float8_kernel<KIND, false>, blocks_for(blocks, THREADS / WARP, 1 << 20), THREADS, 0, queue, out,
		       codes, x, n, block, powers);
}

extern "C" void float8_pack_cuda(void *queue, uint8_t *out, const float *x, size_t n, uint32_t block,
                                 gradcomp_dtype type, int powers)
{
	if (n && type == GRADCOMP_F8E4M3)
		float8_pack_as<f8e4m3>(queue, out, x, n, block, powers);
	else if (n && type == GRADCOMP_F4E2M1)
		float8_pack_as<f4e2m1>(queue, out, x, n, block, powers);
	else if (n)
		float8_pack_as<f8e5m2>(queue, out, x, n, block, powers);
}

template <class KIND, bool ADD> struct float8_value : element_wise {
	const uint8_t *scales, *codes;
	int *fault;
	uint32_t groups;
	int powers;
	float8_value(const uint8_t *in, size_t n, uint32_t block, int p, int *f)
	    : scales(in), codes(in + gradcomp_float8_scales(n, block, uint32_t(p))), fault(f), groups(block / 32),
	      powers(p)
	{
	}
	template <class A, class B> __device__ float operator()(nothing, size_t i, int, A y, B) const
	{
		bool wrong = false;
		const float scale = scale_of<KIND>(scales, i, groups, powers, wrong);
		const uint8_t c = KIND::unpacked(KIND::bits == 4 ? codes[i / 2] >> 4 * (i % 2) : codes[i]);
		if ((c & 0x7f) > KIND::most || wrong)
			*fault = 1;
		const float v = KIND::wide(c) * scale;
		if constexpr (ADD)
			return y + v;
		else
			return v;
	}
};

template <bool ADD, class A>
static void float8_each(void *queue, float *y, const A *from, const uint8_t *in, size_t n, uint32_t block,
                        gradcomp_dtype type, int powers, int *fault)
{
	if (type == GRADCOMP_F8E4M3)
		each(queue, float8_value<f8e4m3, ADD>(in, n, block, powers, fault), y, from, no_operand, n);
	else if (type == GRADCOMP_F4E2M1)
		each(queue, float8_value<f4e2m1, ADD>(in, n, block, powers, fault), y, from, no_operand, n);
	else
		each(queue, float8_value<f8e5m2, ADD>(in, n, block, powers, fault), y, from, no_operand, n);
}

extern "C" void float8_read_cuda(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block,
                                 gradcomp_dtype type, int powers, int *fault)
{
	float8_each<false>(queue, y, no_operand, in, n, block, type, powers, fault);
}

extern "C" void float8_add_cuda(void *queue, float *y, const uint8_t *in, size_t n, uint32_t block, gradcomp_dtype type,
                                int powers, int *fault)
{
	float8_each<true>(queue, y, y, in, n, block, type, powers, fault);
}
