#include "step/layout.h"

#include "base/error.h"
#include "job/job.h"
#include "schedule/task_list.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *type_name(gradcomp_dtype dtype)
{
	static const char *const names[] = {
		[GRADCOMP_F32] = "float32", [GRADCOMP_F16] = "float16", [GRADCOMP_BF16] = "bfloat16",
		[GRADCOMP_F64] = "float64", [GRADCOMP_I32] = "int32",   [GRADCOMP_I64] = "int64",
		[GRADCOMP_U8] = "uint8"};
	return (size_t)dtype < sizeof names / sizeof *names ? names[dtype] : "unknown";
}

static gradcomp_status copy_tensor(gradcomp_tensor *t, const gradcomp_tensor_desc *d, uint32_t index,
                                   gradcomp_error *err)
{
	char unnamed[32];
	uint64_t numel = 1, *dims;
	snprintf(unnamed, sizeof unnamed, "tensor %u", index);
	t->name = strdup(d->name ? d->name : unnamed);
	t->dims = dims = malloc((d->ndim ? d->ndim : 1) * sizeof *dims);
	if (!t->name || !dims)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for tensor %u", index);
	if (d->dtype != GRADCOMP_F32 && d->dtype != GRADCOMP_F16 && d->dtype != GRADCOMP_BF16)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "tensor %u '%s' has element type %s (%d): gradients are float32, float16 or bfloat16",
		                 index, t->name, type_name(d->dtype), (int)d->dtype);
	if (d->ndim && !d->dims)
		return error_set(err, GRADCOMP_ERR_INVALID, "tensor %u '%s' has %u dimensions, but dims is NULL", index,
		                 t->name, d->ndim);
	for (uint32_t k = 0; k < d->ndim; k++) {
		dims[k] = d->dims[k];
		if (dims[k] && numel > NUMEL_MAX / dims[k])
			return error_set(err, GRADCOMP_ERR_RANGE, "tensor %u '%s' has more than 2^48 elements", index,
			                 t->name);
		numel *= dims[k];
	}
	t->ndim = d->ndim;
	t->dtype = d->dtype;
	t->numel = numel;
	return GRADCOMP_OK;
}

gradcomp_status layout_make(gradcomp_layout *l, const gradcomp_group *group, const gradcomp_tensor_desc *tensors,
                            uint32_t n, uint64_t seed, gradcomp_error *err)
{
	uint64_t at = 0;
	gradcomp_tensor *to;
	*l = (gradcomp_layout){.struct_size = sizeof *l, .rank = group->me, .nranks = group->nranks, .seed = seed};
	if (!n || !tensors)
		return error_set(err, GRADCOMP_ERR_INVALID, "a reducer needs at least one tensor");
	to = calloc(n, sizeof *to);
	if (!to)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", n);
	l->tensors = to;
	l->ntensors = n;
	for (uint32_t i = 0; i < n; i++) {
		gradcomp_status st = copy_tensor(&to[i], &tensors[n - 1 - i], n - 1 - i, err);
		if (st)
			return st;
		to[i].offset = at;
		at += to[i].numel;
		if (at > NUMEL_MAX)
			return error_set(err, GRADCOMP_ERR_RANGE, "the model has more than 2^48 parameters");
	}
	l->numel = at;
	return GRADCOMP_OK;
}

double layout_bytes(const gradcomp_layout *l)
{
	double bytes = 0;
	for (uint32_t t = 0; t < l->ntensors; t++)
		bytes += (double)l->tensors[t].numel * (double)gradcomp_dtype_bytes(l->tensors[t].dtype);
	return bytes;
}

void layout_free(gradcomp_layout *l)
{
	for (uint32_t i = 0; l->tensors && i < l->ntensors; i++) {
		free((char *)l->tensors[i].name);
		free((uint64_t *)l->tensors[i].dims);
	}
	free((gradcomp_tensor *)l->tensors);
	l->tensors = NULL;
}

gradcomp_status layout_limits(const gradcomp_layout *l, const struct gradcomp_compressor_v1 *c, gradcomp_error *err)
{
	for (uint32_t i = 0; c->max_bucket && i < l->ntensors; i++)
		if (l->tensors[i].numel > c->max_bucket)
			return error_set(err, GRADCOMP_ERR_RANGE,
			                 "tensor '%s' has %llu elements; compressor '%s' counts up to %llu in one "
			                 "bucket",
			                 l->tensors[i].name, (unsigned long long)l->tensors[i].numel, c->info.name,
			                 (unsigned long long)c->max_bucket);
	return GRADCOMP_OK;
}

uint64_t layout_hash_tensor(const gradcomp_tensor *t)
{
	uint64_t h = id_mix(t->ndim, (uint64_t)t->dtype);
	for (uint32_t k = 0; k < t->ndim; k++)
		h = id_mix(h, t->dims[k]);
	return h;
}

uint64_t layout_hash(const gradcomp_layout *l)
{
	uint64_t h = 0;
	for (uint32_t i = 0; i < l->ntensors; i++)
		h = id_mix(h, layout_hash_tensor(&l->tensors[i]));
	return h;
}
