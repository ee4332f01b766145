#include "step/gpu/gpu_acts.h"

void gpu_acts_run(gpu_acts *a)
{
	if (a->count)
		a->ops->act_if(a->stream, a->at, a->count, 0, a->word);
	a->count = a->finders;
}

static void add(gpu_acts *a, gradcomp_act one)
{
	if (a->count == GRADCOMP_ACTS)
		gpu_acts_run(a);
	a->at[a->count++] = one;
}

uint32_t gpu_acts_find(gpu_acts *a, int *to, const void *words, size_t stride, uint64_t n, bool too)
{
	const uint32_t kind = too ? GRADCOMP_ACT_FIND_TOO : GRADCOMP_ACT_FIND;
	add(a, (gradcomp_act){.to = to, .from = words, .n = n, .arg = (uint32_t)stride, .kind = kind});
	a->finders = a->count;
	return a->count - 1;
}

void gpu_acts_move(gpu_acts *a, float *to, const float *from, uint64_t n, const int *by, uint32_t found)
{
	const uint32_t kind = from ? GRADCOMP_ACT_COPY : GRADCOMP_ACT_CLEAR;
	add(a, (gradcomp_act){.to = to, .by = by, .from = from, .n = n, .arg = found, .kind = kind});
}

void gpu_acts_clear(gpu_acts *a, float *to, uint64_t n)
{
	add(a, (gradcomp_act){.to = to, .n = n, .kind = GRADCOMP_ACT_FILL});
}
