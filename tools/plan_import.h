/* Models as Hugging Face's programs save them: config.json, with the description of its family in the installed
 * models, and the headers of safetensors. Seconds are computed: the operations of a rank's tokens at PLAN_RATE. */
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

#endif
