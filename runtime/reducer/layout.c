/* The arena's layout. */
#include "reducer/reducer.h"

#include "base/error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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
		                 "tensor %u '%s' has element type %d: gradients are F32, F16 or BF16", index, t->name,
		                 (int)d->dtype);
	if (d->ndim && !d->dims)
		return error_set(err, GRADCOMP_ERR_INVALID, "tensor %u '%s' has %u dimensions, but dims is NULL", index,
		                 t->name, d->ndim);
	for (uint32_t k = 0; k < d->ndim; k++) {
		dims[k] = d->dims[k];
		if (dims[k] && numel > NUMEL_MAX / dims[k])
			return error_set(err, GRADCOMP_ERR_RANGE, "tensor %u '%s' has more than 2^48 elements", index, t->name);
		numel *= dims[k];
	}
	t->ndim = d->ndim;
	t->dtype = d->dtype;
	t->numel = numel;
	return GRADCOMP_OK;
}

gradcomp_status layout_make(gradcomp_reducer *r, const gradcomp_tensor_desc *tensors, uint32_t n, uint64_t seed,
                            gradcomp_error *err)
{
	uint64_t at = 0;
	if (!n || !tensors)
		return error_set(err, GRADCOMP_ERR_INVALID, "a reducer needs at least one tensor");
	r->tensors = calloc(n, sizeof *r->tensors);
	r->given = calloc(n, sizeof *r->given);
	if (!r->tensors || !r->given)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for %u tensors", n);
	r->layout = (gradcomp_layout){.struct_size = sizeof r->layout, .ntensors = n, .tensors = r->tensors,
	                              .rank = r->group->me, .nranks = r->group->nranks, .seed = seed};
	for (uint32_t i = 0; i < n; i++) {
		gradcomp_tensor *t = &r->tensors[i];
		gradcomp_status st = copy_tensor(t, &tensors[n - 1 - i], n - 1 - i, err);
		if (st)
			return st;
		t->offset = at;
		at += t->numel;
		if (at > NUMEL_MAX)
			return error_set(err, GRADCOMP_ERR_RANGE, "the model has more than 2^48 parameters");
	}
	r->layout.numel = at;
	return GRADCOMP_OK;
}

gradcomp_status layout_limits(const gradcomp_reducer *r, gradcomp_error *err)
{
	uint64_t max = r->compressor->max_bucket;
	for (uint32_t i = 0; max && i < r->layout.ntensors; i++)
		if (r->tensors[i].numel > max)
			return error_set(err, GRADCOMP_ERR_RANGE,
			                 "tensor '%s' has %llu elements; compressor '%s' counts up to %llu in one bucket",
			                 r->tensors[i].name, (unsigned long long)r->tensors[i].numel, r->compressor->info.name,
			                 (unsigned long long)max);
	return GRADCOMP_OK;
}

void layout_free(gradcomp_reducer *r)
{
	for (uint32_t i = 0; r->tensors && i < r->layout.ntensors; i++) {
		free((char *)r->tensors[i].name);
		free((uint64_t *)r->tensors[i].dims);
	}
	free(r->tensors);
	free(r->given);
}

uint64_t layout_hash_tensor(const gradcomp_tensor *t)
{
	uint64_t h = id_mix(t->ndim, (uint64_t)t->dtype);
	for (uint32_t k = 0; k < t->ndim; k++)
		h = id_mix(h, t->dims[k]);
	return h;
}
