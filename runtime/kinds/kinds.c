#include "kinds/kinds.h"

#include "kinds/autotune/tuner.h"
#include "kinds/by_name.h"

static const reducer_kind kinds[] = {
	{"compressor auto, which compares compressors while the job runs", tuner_requested, tuner_check_spec,
         tuner_open},
	{"SPECs by name, which several reducers have", by_name_requested, by_name_check, by_name_open},
};

const reducer_kind *kinds_find(const config *c, const char *compressor)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (kinds[i].requested(c, compressor))
			return &kinds[i];
	return NULL;
}

gradcomp_status kinds_open(gradcomp_group *group, const gradcomp_tensor_desc *tensors, uint32_t ntensors,
                           const gradcomp_reducer_options *o, gradcomp_reducer **out, gradcomp_error *err)
{
	const reducer_kind *kind = kinds_find(group->job->config, o->compressor);
	reducer *r = NULL;
	if (kind)
		return kind->open(group, tensors, ntensors, o, out, err);
	gradcomp_status st = reducer_create(group, tensors, ntensors, o, true, &r, err);
	if (!st)
		*out = &r->base;
	return st;
}
