/* A device and its queues, within the module over libibverbs. */
#ifndef TRANSPORT_VERBS_MODULE_RDMA_DEVICE_H
#define TRANSPORT_VERBS_MODULE_RDMA_DEVICE_H

#include "transport/verbs/fabric.h"

#include <infiniband/verbs.h>

typedef struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_port_attr attr;
	union ibv_gid gid;
	uint8_t port;
	int index; /* index of the GID */
} device;

typedef struct rdma_queue {
	device *d;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint32_t first;
} rdma_queue;

/* rdma_choose.c: the first port that fits; NOTFOUND or UNSUPPORTED says why none does. */
gradcomp_status rdma_choose(const fabric_choice *choice, device *d, fabric_info *info, gradcomp_error *err);

/* rdma_queue.c */
gradcomp_status rdma_queue_open(void *dev, unsigned sends, unsigned receives, void **queue, fabric_address *mine,
                                int *fd, gradcomp_error *err);
gradcomp_status rdma_connect(void *queue, const fabric_address *peer, double seconds, gradcomp_error *err);
void rdma_queue_close(void *queue);

#endif
