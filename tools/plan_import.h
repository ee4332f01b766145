/* Models as Hugging Face's programs save them: config.json, with the description of its family in the installed
 * models, and the headers of safetensors. Seconds are computed: the operations of a rank's tokens at PLAN_RATE. And
 * models out of traces of torch.profiler, whose seconds are measured. */
#ifndef TOOLS_PLAN_IMPORT_H
#define TOOLS_PLAN_IMPORT_H

#include <stdbool.h>

#include <jansson.h>

#include "cost/planning.h"

/* Operations a second: 40 % of the 156 TFLOP/s that an NVIDIA A100 has for TF32, as in the models that are
 * installed. */
#define PLAN_RATE 62.4e12
enum { PLAN_DIMS = 8 };

/* A model that grows; tensors and layers have room for more. */
typedef struct plan_import {
	model_file *m;
	const char *path; /* for messages */
	uint64_t tokens;
	uint64_t numel;
	uint32_t room, layers_room;
	gradcomp_error *err;
} plan_import;

/* Appends a tensor whose part of the forward pass is so many operations, and of the backward pass twice as many. RANGE
 * for what no model file may have. */
gradcomp_status plan_import_tensor(plan_import *to, const char *name, const uint64_t *dims, uint32_t ndim,
                                   double operations);
/* Appends a layer that begins with the next tensor. */
gradcomp_status plan_import_layer(plan_import *to, const char *name);

/* plan_config.c: a configuration's tensors and layers. UNSUPPORTED for a family that has no description, with those
 * that have one; INVALID for what is missing or no number. */
gradcomp_status plan_config(plan_import *to, const json_t *config);
/* The experts that a token goes through, as a share of all; 1 without experts, negative where the configuration does
 * not say. */
double plan_config_active(const json_t *config);

/* plan_safetensors.c: the tensors of `nfiles` files, in the order of a forward pass as far as their names tell it.
 * `active`: as plan_config_active(). */
gradcomp_status plan_safetensors(plan_import *to, char *const *files, size_t nfiles, double active, bool timed);

/* plan_kineto.c: the parameters of to->path, a trace of torch.profiler, in the reverse order of their gradients, with
 * medians of its passes. `names`: a file of "NAME SHAPE" lines in the order of model.named_parameters(), of which each
 * tensor gets the first free one of its shape; NULL: they are called by module and shape. INVALID for what is no trace,
 * or has no passes, shapes or numbers to go by; RANGE for more than can be kept; UNSUPPORTED for another version;
 * NOTFOUND and IO of either file. */
gradcomp_status plan_kineto(plan_import *to, const char *names);

#endif
