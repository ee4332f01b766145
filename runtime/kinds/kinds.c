#include "kinds/kinds.h"

#include "kinds/autotune/tuner.h"
#include "kinds/by_name.h"

static const reducer_kind kinds[] = {
	{"compressor auto, which compares compressors while the job runs", tuner_requested, tuner_check_spec},
	{"SPECs by name, which several reducers have", by_name_requested, by_name_check},
};

const reducer_kind *kinds_find(const config *c, const char *compressor)
{
	for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
		if (kinds[i].requested(c, compressor))
			return &kinds[i];
	return NULL;
}
