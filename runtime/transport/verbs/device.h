/* The module over libibverbs, as its files see it. */
#ifndef DEVICE_H
#define DEVICE_H

#include "fabric.h"

#include <infiniband/verbs.h>

typedef struct device {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_port_attr attr;
	union ibv_gid gid;
	uint8_t port;
	int index; /* of the GID */
} device;

typedef struct device_queue {
	device *d;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	uint32_t first;
} device_queue;

/* choose.c: the first port that fits; NOTFOUND or UNSUPPORTED says why none does. */
gradcomp_status device_choose(const fabric_choice *choice, device *d, fabric_facts *facts, gradcomp_error *err);

/* queue.c */
gradcomp_status device_queue_open(void *dev, unsigned sends, unsigned receives, void **queue, fabric_end *mine,
                                  int *fd, gradcomp_error *err);
gradcomp_status device_connect(void *queue, const fabric_end *peer, double seconds, gradcomp_error *err);
void device_queue_close(void *queue);

#endif
