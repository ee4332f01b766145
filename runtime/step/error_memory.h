/* Error memory that is kept in another form than an array of floats (config/memory_rows.h): what a bucket is owed is
 * unpacked into its workspace when its step begins, and packed when it ends. So it serves every compressor, which
 * finds floats in any case, and takes 4 bytes a number for buckets in flight alone.
 *
 *     bf16   rounded to nearest even; what is too large becomes the largest number
 *     i8     64 numbers of a tensor, from its beginning, share a step: their largest magnitude / 127, as a bf16, then a
 *            byte for each. Rounded to nearest: off by half a step at most, 1/253 of that magnitude. A step below
 *            2^-126 is kept as zero. Where one is not finite, all 64 are NaN.
 *     f32    exactly; for a moving average
 *
 * What has been unpacked packs into the same bytes, so that a state of floats is exact. A step that is given up (a NaN
 * among gradients) packs nothing. */
#ifndef STEP_ERROR_MEMORY_H
#define STEP_ERROR_MEMORY_H

#include "config/memory_rows.h"
#include "gradcomp/compressor.h"

typedef struct error_memory error_memory;

/* Zeroes, for the layout's tensors, which stay. Their memory becomes 1 - average of what it was and `average` of what
 * is stored. NULL: no memory. */
error_memory *error_memory_make(const gradcomp_layout *layout, const gradcomp_operators *ops, memory_form form,
                                float average);
/* NULL is fine. */
void error_memory_free(error_memory *m);
/* Reads and overwrites numbers [at, at + n) of the layout. Threads may do so at a time in different tensors. */
void error_memory_read(const error_memory *m, uint64_t at, uint64_t n, float *to);
void error_memory_write(error_memory *m, uint64_t at, uint64_t n, const float *from);
/* Takes what a step has left, of whole tensors, into the moving average; `left` is overwritten. */
void error_memory_store(error_memory *m, uint64_t at, uint64_t n, float *left);

#endif
