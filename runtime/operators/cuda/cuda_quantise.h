/* Where steps and codes are in memory, and codes as words of W numbers. */
#ifndef OPERATORS_CUDA_CUDA_QUANTISE_H
#define OPERATORS_CUDA_CUDA_QUANTISE_H

#include "operators/cuda/cuda_random.h"

#include "operators/cpu/small_float.h"

/* Kernels get this of a gradcomp_quantiser; `block` is in groups of 32. */
struct quantiser {
	uint32_t bits, levels, groups, rounding, norm;
	const float *given;
	drawing d;
};

static inline quantiser quantiser_of(const gradcomp_quantiser *q)
{
	return quantiser{q->bits,
	                 q->levels,
	                 q->block / 32,
	                 q->rounding,
	                 q->norm,
	                 q->given,
	                 drawing{q->seed, q->stream, q->first}};
}

static inline size_t step_bytes(const gradcomp_quantiser *q, size_t n)
{
	return q->norm == GRADCOMP_NORM_GIVEN ? 0 : (n + q->block - 1) / q->block * sizeof(float);
}

static inline __host__ __device__ size_t code_bytes(size_t n, unsigned bits)
{
	return n / 8 * bits + (n % 8 * bits + 7) / 8;
}

INLINE float load_float(const uint8_t *p)
{
	float f;
	if (reinterpret_cast<uintptr_t>(p) % sizeof f == 0)
		return *reinterpret_cast<const float *>(p);
	memcpy(&f, p, sizeof f);
	return f;
}

/* The block that number i is in. */
INLINE size_t block_of(size_t i, uint32_t groups)
{
	const size_t group = i / 32;
	return group <= UINT32_MAX ? uint32_t(group) / groups : group / groups;
}

/* `count` bytes, at most four, the first lowest. */
INLINE uint32_t load_word(const uint8_t *p, unsigned count)
{
	uint32_t w = 0;
	if (count == 4 && reinterpret_cast<uintptr_t>(p) % 4 == 0)
		return *reinterpret_cast<const uint32_t *>(p);
	for (unsigned j = 0; j < count; j++)
		w |= uint32_t(p[j]) << 8 * j;
	return w;
}

INLINE void store_word(uint8_t *p, uint32_t w, unsigned count)
{
	if (count == 4 && reinterpret_cast<uintptr_t>(p) % 4 == 0)
		*reinterpret_cast<uint32_t *>(p) = w;
	else if (count == 2 && reinterpret_cast<uintptr_t>(p) % 2 == 0)
		*reinterpret_cast<uint16_t *>(p) = uint16_t(w);
	else
		for (unsigned j = 0; j < count; j++)
			p[j] = uint8_t(w >> 8 * j);
}

/* The scale of number i of small floats of a KIND (cuda_kinds.h), and whether float8_pack() can have written it. */
template <class KIND> INLINE float scale_of(const uint8_t *scales, size_t i, uint32_t groups, int powers, bool &wrong)
{
	const size_t b = block_of(i, groups);
	if (powers == GRADCOMP_SCALES_E4M3) {
		const uint8_t *const own = scales + b * (sizeof(float) + groups * (32 / FLOAT8_SHARE));
		const float above = load_float(own);
		const uint8_t byte = own[sizeof(float) + (i - b * groups * 32) / FLOAT8_SHARE];
		wrong |= !float8_above_right(above) || byte > FLOAT8_LARGEST_CODE(1);
		return float8_share(byte, above);
	}
	const float scale = powers ? float8_power(scales[b]) : load_float(scales + b * sizeof(float));
	wrong |= !float8_scale_right(scale, KIND::kind);
	return scale;
}

/* Code number j of a word, with its sign. */
INLINE int code_of(uint32_t word, unsigned j, unsigned bits)
{
	return int32_t(word << (32 - bits * (j + 1))) >> (32 - bits);
}

#endif
