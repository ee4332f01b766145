#include "kinds/autotune/tuner.h"
#include "kinds/by_name.h"
#include "kinds/kinds.h"

gradcomp_status kinds_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                           const gradcomp_reducer_options *o, gradcomp_reducer **out, gradcomp_error *err)
{
	const config *c = group->job->config;
	reducer *r = NULL;
	if (tuner_requested(c, o->compressor))
		return tuner_open(group, tensors, ntensors, o, out, err);
	if (by_name_requested(c, o->compressor))
		return by_name_open(group, tensors, ntensors, o, out, err);
	gradcomp_status st = reducer_create(group, tensors, ntensors, o, true, &r, err);
	if (!st)
		*out = &r->base;
	return st;
}
