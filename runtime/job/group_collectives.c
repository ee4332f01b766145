/* The functions of a group that were there before gradcomp_call, and those on device memory. */
#include "job/device_coll.h"
#include "job/group_calls.h"

#include "base/error.h"
#include "base/first_sizes.h"

gradcomp_status group_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                gradcomp_error *err)
{
	return group_run(g,
	                 &(gradcomp_call){
				 .kind = GRADCOMP_CALL_ALLREDUCE, .dtype = dtype, .op = op, .out = buf, .count = count},
	                 err);
}

/* Calls of blocks have counts here. */
static gradcomp_status check_counts_given(const gradcomp_group *g, const gradcomp_call *call, gradcomp_error *err)
{
	bool blocks = call->kind == GRADCOMP_CALL_ALLGATHER || call->kind == GRADCOMP_CALL_REDUCE_SCATTER;
	return g && blocks && !call->in_counts && !call->out_counts
	               ? error_set(err, GRADCOMP_ERR_INVALID, "counts is NULL")
	               : GRADCOMP_OK;
}

static gradcomp_status run_blocks(gradcomp_group *g, const gradcomp_call *call, gradcomp_error *err)
{
	gradcomp_status st = check_counts_given(g, call, err);
	return st ? st : group_run(g, call, err);
}

gradcomp_status group_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
                                gradcomp_dtype dtype, gradcomp_error *err)
{
	return run_blocks(g,
	                  &(gradcomp_call){.kind = GRADCOMP_CALL_ALLGATHER,
	                                   .dtype = dtype,
	                                   .in = in,
	                                   .out = out,
	                                   .out_counts = counts},
	                  err);
}

static gradcomp_status group_reduce_scatter(gradcomp_group *g, void *in, void *out, const uint64_t *counts,
                                            gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	return run_blocks(g,
	                  &(gradcomp_call){.kind = GRADCOMP_CALL_REDUCE_SCATTER,
	                                   .dtype = dtype,
	                                   .op = op,
	                                   .flags = GRADCOMP_CALL_OVERWRITE,
	                                   .in = in,
	                                   .out = out,
	                                   .in_counts = counts},
	                  err);
}

gradcomp_status group_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                gradcomp_error *err)
{
	return group_run(g,
	                 &(gradcomp_call){.kind = GRADCOMP_CALL_BROADCAST,
	                                  .dtype = dtype,
	                                  .peer = root,
	                                  .out = buf,
	                                  .count = count},
	                 err);
}

gradcomp_status group_barrier(gradcomp_group *g, gradcomp_error *err)
{
	return group_run(g, &(gradcomp_call){.kind = GRADCOMP_CALL_BARRIER, .dtype = GRADCOMP_U8}, err);
}

gradcomp_status gradcomp_allreduce(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                   gradcomp_error *err)
{
	return group_commit(g, group_allreduce(g, buf, count, dtype, op, err), err);
}

gradcomp_status gradcomp_allgather(gradcomp_group *g, const void *in, void *out, const uint64_t *counts,
                                   gradcomp_dtype dtype, gradcomp_error *err)
{
	return group_commit(g, group_allgather(g, in, out, counts, dtype, err), err);
}

gradcomp_status gradcomp_reduce_scatter(gradcomp_group *g, void *in, void *out, const uint64_t *counts,
                                        gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	return group_commit(g, group_reduce_scatter(g, in, out, counts, dtype, op, err), err);
}

gradcomp_status gradcomp_broadcast(gradcomp_group *g, void *buf, uint64_t count, gradcomp_dtype dtype, int root,
                                   gradcomp_error *err)
{
	return group_commit(g, group_broadcast(g, buf, count, dtype, root, err), err);
}

gradcomp_status gradcomp_barrier(gradcomp_group *g, gradcomp_error *err)
{
	return group_commit(g, group_barrier(g, err), err);
}

/* Returns true when a call is of host memory: then it is the function's above. */
static bool in_host_memory(const gradcomp_memory_options *where)
{
	return !where || where->device == GRADCOMP_HOST;
}

gradcomp_status group_memory_options_check(const gradcomp_memory_options *where, gradcomp_error *err)
{
	if (where->struct_size < FIRST_SIZE(gradcomp_memory_options))
		return error_set(err, GRADCOMP_ERR_INVALID, "memory options of %u bytes: must be %d or more",
		                 where->struct_size, FIRST_SIZE(gradcomp_memory_options));
	return where->device == GRADCOMP_CUDA
	               ? GRADCOMP_OK
	               : error_set(err, GRADCOMP_ERR_INVALID, "buffers on device %d: must be 0 (host) or 1 (CUDA)",
	                           (int)where->device);
}

/* Checks a call on device memory: reductions take the types and operations that there were first. */
static gradcomp_status check_on(const gradcomp_group *g, const gradcomp_memory_options *where,
                                const gradcomp_call *call, gradcomp_error *err)
{
	bool reduces = call->kind == GRADCOMP_CALL_ALLREDUCE || call->kind == GRADCOMP_CALL_REDUCE_SCATTER;
	gradcomp_status st = group_memory_options_check(where, err);
	if (!st)
		st = check_counts_given(g, call, err);
	if (!st)
		st = group_call_check(g, call, err);
	if (!st && call->kind == GRADCOMP_CALL_ALLGATHER && !call->in && call->out_counts[g->me])
		st = error_set(err, GRADCOMP_ERR_INVALID, "buffer is NULL for %llu elements",
		               (unsigned long long)call->out_counts[g->me]);
	if (!st && reduces && (call->dtype > GRADCOMP_U8 || call->op > GRADCOMP_BOR))
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		               "operation %u on elements of type %u is not served on a device", call->op, call->dtype);
	return st;
}

static gradcomp_status run(gradcomp_group *g, device_coll_call *call, void *queue, gradcomp_error *err)
{
	gradcomp_status st;
	call->queue = queue;
	pthread_mutex_lock(&g->device_lock);
	st = transport_failure(g->job->transport, err);
	/* All ranks know then what one of them cannot. */
	if (!st && !g->device)
		st = device_coll_open(g, NULL, &g->device, err);
	if (!st)
		st = group_failed(g, device_coll_run(g->device, call, err), err);
	pthread_mutex_unlock(&g->device_lock);
	return group_commit(g, st, err);
}

gradcomp_status gradcomp_allreduce_on(gradcomp_group *g, const gradcomp_memory_options *where, void *buf,
                                      uint64_t count, gradcomp_dtype dtype, gradcomp_op op, gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_allreduce(g, buf, count, dtype, op, err);
	gradcomp_status st =
		check_on(g, where,
	                 &(gradcomp_call){
				 .kind = GRADCOMP_CALL_ALLREDUCE, .dtype = dtype, .op = op, .out = buf, .count = count},
	                 err);
	device_coll_call call = {.kind = DEVICE_ALLREDUCE, .buf = buf, .counts = &count, .dtype = dtype, .op = op};
	return st ? st : run(g, &call, where->queue, err);
}

gradcomp_status gradcomp_allgather_on(gradcomp_group *g, const gradcomp_memory_options *where, const void *in,
                                      void *out, const uint64_t *counts, gradcomp_dtype dtype, gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_allgather(g, in, out, counts, dtype, err);
	gradcomp_status st = check_on(g, where,
	                              &(gradcomp_call){.kind = GRADCOMP_CALL_ALLGATHER,
	                                               .dtype = dtype,
	                                               .in = in,
	                                               .out = out,
	                                               .out_counts = counts},
	                              err);
	device_coll_call call = {.kind = DEVICE_ALLGATHER, .buf = out, .in = in, .counts = counts, .dtype = dtype};
	return st ? st : run(g, &call, where->queue, err);
}

gradcomp_status gradcomp_reduce_scatter_on(gradcomp_group *g, const gradcomp_memory_options *where, void *in, void *out,
                                           const uint64_t *counts, gradcomp_dtype dtype, gradcomp_op op,
                                           gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_reduce_scatter(g, in, out, counts, dtype, op, err);
	gradcomp_status st = check_on(g, where,
	                              &(gradcomp_call){.kind = GRADCOMP_CALL_REDUCE_SCATTER,
	                                               .dtype = dtype,
	                                               .op = op,
	                                               .in = in,
	                                               .out = out,
	                                               .in_counts = counts},
	                              err);
	device_coll_call call = {
		.kind = DEVICE_REDUCE_SCATTER, .buf = in, .out = out, .counts = counts, .dtype = dtype, .op = op};
	return st ? st : run(g, &call, where->queue, err);
}

gradcomp_status gradcomp_broadcast_on(gradcomp_group *g, const gradcomp_memory_options *where, void *buf,
                                      uint64_t count, gradcomp_dtype dtype, int root, gradcomp_error *err)
{
	gradcomp_error own = {0};
	err = err ? err : &own;
	if (in_host_memory(where))
		return gradcomp_broadcast(g, buf, count, dtype, root, err);
	gradcomp_status st = check_on(g, where,
	                              &(gradcomp_call){.kind = GRADCOMP_CALL_BROADCAST,
	                                               .dtype = dtype,
	                                               .peer = root,
	                                               .out = buf,
	                                               .count = count},
	                              err);
	device_coll_call call = {.kind = DEVICE_BROADCAST, .buf = buf, .counts = &count, .dtype = dtype, .root = root};
	return st ? st : run(g, &call, where->queue, err);
}
