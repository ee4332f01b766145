/* The layout of a model's gradients: tensors get offsets in backward order, the reverse of
 * the order that they are declared in, so that a bucket is a run of neighbours. */
#ifndef STEP_LAYOUT_H
#define STEP_LAYOUT_H

#include "gradcomp/compressor.h"
#include "gradcomp/gradcomp.h"

/* Fills *l, but for `patterns` and `device`; it owns its tensors, their names and dimensions.
 * To be freed either way. */
gradcomp_status layout_make(gradcomp_layout *l, const gradcomp_group *group, const gradcomp_tensor_desc *tensors,
                            uint32_t n, uint64_t seed, gradcomp_error *err);
void layout_free(gradcomp_layout *l);
/* Returns the bytes of all gradients, in the types that they have. */
double layout_bytes(const gradcomp_layout *l);
/* Checks that a compressor can count what one tensor holds; asked before anything of the model's size is allocated. */
gradcomp_status layout_limits(const gradcomp_layout *l, const struct gradcomp_compressor_v1 *c, gradcomp_error *err);
/* Hash everything that all ranks must agree on about tensor t, and about all of them. */
uint64_t layout_hash_tensor(const gradcomp_tensor *t);
uint64_t layout_hash(const gradcomp_layout *l);

#endif
