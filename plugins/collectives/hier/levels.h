/* hier on payloads in GPU memory: the two levels of plugins/common/collectives/hier.h, each over a communicator
 * of NCCL's. What is in host memory goes over the job's links, as without a GPU. The calls are those of
 * collective.h, with what levels_create() makes for an instance. */
#ifndef PLUGINS_COLLECTIVES_HIER_LEVELS_H
#define PLUGINS_COLLECTIVES_HIER_LEVELS_H

#include "gradcomp/collective.h"

#include <stddef.h>

/* timeout: seconds that a call may wait for other ranks, where payloads are in GPU memory. */
gradcomp_status levels_create(const gradcomp_host *host, const gradcomp_links *links, size_t chunk, int ranks_per_node,
                              double timeout, void **out, gradcomp_error *err);
void levels_destroy(void *instance);
gradcomp_status levels_set_queue(void *instance, void *queue, gradcomp_error *err);
gradcomp_status levels_enqueue(void *instance, int on, gradcomp_error *err);
gradcomp_status levels_watch(void *instance, int *busy, gradcomp_error *err);
const char *levels_unusable(void);
gradcomp_status levels_allreduce(void *instance, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                 double scale, gradcomp_error *err);
gradcomp_status levels_reduce_scatter(void *instance, void *buf, const uint64_t *counts, gradcomp_dtype dtype,
                                      gradcomp_op op, double scale, gradcomp_error *err);
gradcomp_status levels_allgather(void *instance, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status levels_broadcast(void *instance, void *buf, uint64_t bytes, int root, gradcomp_error *err);
gradcomp_status levels_barrier(void *instance, gradcomp_error *err);
gradcomp_status levels_coded_allreduce(void *instance, float *buf, uint64_t count, double scale,
                                       const gradcomp_codec *codec, uint64_t counter, float *residual,
                                       gradcomp_error *err);
gradcomp_status levels_coded_allgather(void *instance, float *buf, const uint64_t *counts, const gradcomp_codec *codec,
                                       uint64_t counter, float *residual, gradcomp_error *err);
gradcomp_status levels_coded_reduce_scatter(void *instance, float *buf, const uint64_t *counts, double scale,
                                            const gradcomp_codec *codec, uint64_t counter, float *residual,
                                            gradcomp_error *err);
gradcomp_status levels_shard(void *instance, uint64_t numel, gradcomp_shard *out, gradcomp_error *err);
gradcomp_status levels_shard_at(void *instance, uint32_t index, uint64_t numel, gradcomp_shard *out, void **holders,
                                gradcomp_error *err);
gradcomp_status levels_local_reduce_scatter(void *instance, float *buf, uint64_t numel, double scale,
                                            gradcomp_error *err);
gradcomp_status levels_shard_allreduce(void *holders, void *buf, uint64_t count, gradcomp_dtype dtype, gradcomp_op op,
                                       double scale, gradcomp_error *err);
gradcomp_status levels_shard_allgather(void *holders, void *buf, const uint64_t *bytes, gradcomp_error *err);
gradcomp_status levels_local_allgather(void *instance, float *buf, uint64_t numel, gradcomp_error *err);
void levels_cost(void *instance, uint64_t bytes, double *sent, double *messages);

#endif
