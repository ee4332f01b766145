/* The tasks of a bucket's step. */
#include "schedule/task_list.h"

#include "base/error.h"
#include "gradcomp/collective.h"

#include <stdbool.h>

int task_list_make(const gradcomp_plan *plan, int two_levels, task *tasks)
{
	int n = 0;
	tasks[n++] = (task){TASK_BEGIN, 0};
	if (two_levels) {
		tasks[n++] = (task){TASK_REDUCE_LOCAL, 0};
		tasks[n++] = (task){TASK_LOCAL_BEGIN, 0};
	}
	for (uint32_t k = 0; k < plan->nrounds; k++) {
		tasks[n++] = (task){TASK_ENCODE, k};
		tasks[n++] = (task){TASK_EXCHANGE, k};
		tasks[n++] = (task){TASK_DECODE, k};
	}
	if (two_levels) {
		tasks[n++] = (task){TASK_LOCAL_END, 0};
		tasks[n++] = (task){TASK_ALLGATHER_LOCAL, 0};
	}
	tasks[n++] = (task){TASK_FINISH, 0};
	return n;
}

int task_list_find(const task *tasks, int n, task_kind kind)
{
	int i = 0;
	while (i < n && tasks[i].kind != kind)
		i++;
	return i;
}

uint32_t task_list_stages(const task *tasks, int n, int next)
{
	uint32_t left = 0;
	int two_levels = n > 1 && tasks[1].kind == TASK_REDUCE_LOCAL, between = 0;
	for (int i = next; i < n; i++) {
		/* Between the two others there is a stage whether it has rounds or not. */
		between |= tasks[i].kind == TASK_LOCAL_BEGIN || (two_levels && tasks[i].kind == TASK_EXCHANGE);
		left += tasks[i].kind == TASK_REDUCE_LOCAL || tasks[i].kind == TASK_ALLGATHER_LOCAL;
		left += !two_levels && tasks[i].kind == TASK_EXCHANGE;
	}
	return left + (uint32_t)between;
}

const char *task_name(task_kind kind)
{
	static const char *const names[] = {[TASK_BEGIN] = "begin",
	                                    [TASK_ENCODE] = "encode",
	                                    [TASK_EXCHANGE] = "exchange",
	                                    [TASK_DECODE] = "decode",
	                                    [TASK_FINISH] = "finish",
	                                    [TASK_REDUCE_LOCAL] = "reduce_local",
	                                    [TASK_LOCAL_BEGIN] = "local_begin",
	                                    [TASK_LOCAL_END] = "local_end",
	                                    [TASK_ALLGATHER_LOCAL] = "allgather_local"};
	return names[kind];
}

uint64_t task_round_bytes(const gradcomp_round *rd)
{
	switch (rd->pattern) {
	case GRADCOMP_SUMMED:
		return rd->count * gradcomp_dtype_bytes(rd->dtype);
	case GRADCOMP_CODED:
		return rd->count * sizeof(float);
	default:
		return rd->bound;
	}
}

uint32_t task_round_primitive(gradcomp_pattern pattern, uint32_t serves)
{
	switch (pattern) {
	case GRADCOMP_GATHERED:
		return GRADCOMP_CAN_ALLGATHER;
	case GRADCOMP_MERGED:
		return GRADCOMP_CAN_MERGE;
	case GRADCOMP_CODED:
		return serves & GRADCOMP_CAN_EXCHANGE ? GRADCOMP_CAN_EXCHANGE : GRADCOMP_CAN_CODED_ALLREDUCE;
	default:
		return GRADCOMP_CAN_ALLREDUCE;
	}
}

#define ROUND_FLAGS (GRADCOMP_ROUND_MEAN | GRADCOMP_ROUND_IN_PLACE | GRADCOMP_ROUND_FIXED)

/* F8 types are for storage alone; integers are not divided. */
static bool can_be_summed(gradcomp_dtype dtype, int mean)
{
	switch (dtype) {
	case GRADCOMP_F32:
	case GRADCOMP_F16:
	case GRADCOMP_BF16:
	case GRADCOMP_F64:
		return 1;
	case GRADCOMP_I32:
	case GRADCOMP_I64:
	case GRADCOMP_U8:
		return !mean;
	default:
		return 0;
	}
}

gradcomp_status task_list_check_plan(const struct gradcomp_compressor_v1 *c, uint32_t patterns, uint64_t numel,
                                     const gradcomp_plan *plan, gradcomp_error *err)
{
	const char *name = c->info.name;
	if (!plan->nrounds || plan->nrounds > GRADCOMP_MAX_ROUNDS)
		return error_set(err, GRADCOMP_ERR_INTERNAL, "compressor '%s' planned %u rounds: must be 1..%d", name,
		                 plan->nrounds, GRADCOMP_MAX_ROUNDS);
	if (plan->scratch_bytes > NUMEL_MAX)
		return error_set(err, GRADCOMP_ERR_INTERNAL,
		                 "compressor '%s' planned %llu bytes of scratch for %llu numbers", name,
		                 (unsigned long long)plan->scratch_bytes, (unsigned long long)numel);
	for (uint32_t k = 0; k < plan->nrounds; k++) {
		const gradcomp_round *rd = &plan->rounds[k];
		if ((unsigned)rd->pattern > GRADCOMP_CODED || !(patterns & GRADCOMP_PATTERN_BIT(rd->pattern)))
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "compressor '%s' planned payload pattern %d, which is none of those it "
			                 "names",
			                 name, (int)rd->pattern);
		if (rd->pattern == GRADCOMP_CODED && (plan->nrounds != 1 || rd->count != numel))
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "compressor '%s' planned a coded round that is not the only one or not of "
			                 "the whole bucket",
			                 name);
		if (rd->flags & ~ROUND_FLAGS)
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "compressor '%s' planned flags 0x%x, which has others than 0x%x", name,
			                 rd->flags, ROUND_FLAGS);
		if (rd->pattern == GRADCOMP_SUMMED && !can_be_summed(rd->dtype, rd->flags & GRADCOMP_ROUND_MEAN))
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "compressor '%s' planned the %s of elements of type %d, which have none", name,
			                 rd->flags & GRADCOMP_ROUND_MEAN ? "mean" : "sum", (int)rd->dtype);
		if (rd->count > NUMEL_MAX || rd->bound > NUMEL_MAX)
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "compressor '%s' planned a payload of more than 2^48", name);
		if ((rd->flags & GRADCOMP_ROUND_IN_PLACE) &&
		    (rd->pattern != GRADCOMP_SUMMED || rd->dtype != GRADCOMP_F32 || rd->count != numel))
			return error_set(err, GRADCOMP_ERR_INTERNAL,
			                 "compressor '%s' planned an in-place round that is not the bucket's "
			                 "floats",
			                 name);
	}
	return GRADCOMP_OK;
}
