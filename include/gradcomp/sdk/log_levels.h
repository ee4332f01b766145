/* Numbers in few bits whose levels stand closer where numbers are small (LQ-SGD: Li et al., arXiv
 * 2506.17974, 2025). Of a block whose largest magnitude is t, code c of -L..L stands for
 *
 *     sign(c) t ((1 + alpha)^(|c| / L) - 1) / alpha
 *
 * the inverse of sign(x) log(1 + alpha |x| / t) / log(1 + alpha), cut into L levels; a number becomes
 * the level next to it. Payloads are those of a gradcomp_quantiser (operators.h), with t where that has
 * steps, so that quantised_bytes() and quantised_check() hold for them, too. On the host. */
#ifndef GRADCOMP_SDK_LOG_LEVELS_H
#define GRADCOMP_SDK_LOG_LEVELS_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct sdk_log_levels {
	uint32_t bits, levels, block;
	float value[128]; /* of codes 0..levels, for t = 1; the same bits on all machines */
	float edge[128];  /* edge[c]: between codes c - 1 and c */
} sdk_log_levels;

/* Bits (4 or 8), levels and block are q's. */
void sdk_log_levels_make(sdk_log_levels *l, const gradcomp_quantiser *q, double alpha);
void sdk_log_levels_quantise(const sdk_log_levels *l, void *out, const float *x, uint64_t n);
/* y = what `in` holds; y += a times that. */
void sdk_log_levels_dequantise(const sdk_log_levels *l, float *y, const void *in, uint64_t n);
void sdk_log_levels_dequantise_add(const sdk_log_levels *l, float *y, float a, const void *in, uint64_t n);

#ifdef __cplusplus
}
#endif
#endif
