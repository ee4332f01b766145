/* Levels that stand closer where numbers are small (LQ-SGD: Li et al., arXiv 2506.17974, 2025). Of a
 * block whose largest magnitude is t, code c of -L..L stands for
 *
 *     sign(c) t ((1 + alpha)^(|c| / L) - 1) / alpha
 *
 * the inverse of sign(x) log(1 + alpha |x| / t) / log(1 + alpha), cut into L levels; a number becomes
 * the level next to it. levels_pack(), levels_read() and levels_add() of operators.h do that. */
#ifndef GRADCOMP_SDK_LOG_LEVELS_H
#define GRADCOMP_SDK_LOG_LEVELS_H

#include "gradcomp/compressor.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Bits (4 or 8), levels and block are q's. The same bits on all machines. */
void sdk_log_levels_make(gradcomp_levels *l, const gradcomp_quantiser *q, double alpha);

#ifdef __cplusplus
}
#endif
#endif
