/* The lines of a model file's section [layers]:
 *
 *     0 = NAME tensors 2-13 output BYTES kept BYTES BYTES reduces N
 */
#ifndef COST_LAYERS_H
#define COST_LAYERS_H

#include <stdio.h>

#include "cost/planning.h"

/* `value` is what stands behind the '='. On success out->name is the caller's to free; on
 * failure the text says which word is wrong, without file and line. */
gradcomp_status layer_parse(const char *value, model_layer *out, gradcomp_error *err);
/* Prints the same text, which layer_parse() reads back. */
void layer_print(FILE *out, const model_layer *layer);
/* Checks that the layers are all tensors of the model in order; a model without layers is fine. */
gradcomp_status layers_check(const model_file *model, gradcomp_error *err);

#endif
