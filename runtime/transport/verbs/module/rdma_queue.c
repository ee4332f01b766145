/* A queue: a reliably connected queue pair with a completion queue and channel of
 * its own. The states it goes through are in the InfiniBand specification, 10.3.1,
 * and ibv_modify_qp(3). */
#define _GNU_SOURCE
#include "transport/verbs/module/rdma_device.h"

#include "base/error.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define RETRIES 7
#define SLOWEST 19 /* 4.096 us times 2 to the power of this */
#define FASTEST 14

static gradcomp_status queue_make(rdma_queue *q, unsigned sends, unsigned receives, gradcomp_error *err)
{
	struct ibv_qp_init_attr init = {
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = sends, .max_recv_wr = receives, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT, .port_num = q->d->port, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE};
	int flags;
	q->channel = ibv_create_comp_channel(q->d->context);
	if (!q->channel)
		return error_errno(err, GRADCOMP_ERR_IO, "cannot make a completion channel");
	flags = fcntl(q->channel->fd, F_GETFL);
	if (flags < 0 || fcntl(q->channel->fd, F_SETFL, flags | O_NONBLOCK))
		return error_errno(err, GRADCOMP_ERR_IO, "a completion channel cannot be polled");
	q->cq = ibv_create_cq(q->d->context, (int)(sends + receives), NULL, q->channel, 0);
	if (!q->cq)
		return error_errno(err, GRADCOMP_ERR_IO, "cannot make a completion queue of %u entries",
		                   sends + receives);
	init.send_cq = init.recv_cq = q->cq;
	q->qp = ibv_create_qp(q->d->pd, &init);
	if (!q->qp)
		return error_errno(err, GRADCOMP_ERR_IO, "cannot make a queue pair");
	errno = ibv_modify_qp(q->qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	return errno ? error_errno(err, GRADCOMP_ERR_IO, "cannot ready a queue pair") : GRADCOMP_OK;
}

gradcomp_status rdma_queue_open(void *dev, unsigned sends, unsigned receives, void **queue, fabric_address *mine,
                                int *fd, gradcomp_error *err)
{
	rdma_queue *q = calloc(1, sizeof *q);
	gradcomp_status st;
	if (!q)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a queue pair");
	q->d = dev;
	if (getrandom(&q->first, sizeof q->first, 0) != sizeof q->first) {
		free(q);
		return error_errno(err, GRADCOMP_ERR_IO, "the kernel gives no random bytes");
	}
	q->first &= 0xffffff;
	st = queue_make(q, sends, receives, err);
	if (st) {
		rdma_queue_close(q);
		return st;
	}
	*mine = (fabric_address){.number = q->qp->qp_num,
	                         .first = q->first,
	                         .lid = q->d->attr.lid,
	                         .mtu = (uint8_t)q->d->attr.active_mtu};
	memcpy(mine->gid, q->d->gid.raw, sizeof mine->gid);
	*fd = q->channel->fd;
	*queue = q;
	return GRADCOMP_OK;
}

gradcomp_status rdma_connect(void *queue, const fabric_address *peer, double seconds, gradcomp_error *err)
{
	rdma_queue *q = queue;
	int ethernet = q->d->attr.link_layer == IBV_LINK_LAYER_ETHERNET, timeout = FASTEST;
	uint8_t mtu = (uint8_t)q->d->attr.active_mtu;
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_RTR,
	                           .path_mtu = (enum ibv_mtu)(peer->mtu < mtu ? peer->mtu : mtu),
	                           .dest_qp_num = peer->number,
	                           .rq_psn = peer->first,
	                           .max_dest_rd_atomic = 1,
	                           .min_rnr_timer = 12,
	                           .ah_attr = {.dlid = peer->lid, .is_global = ethernet, .port_num = q->d->port}};
	if (ethernet) {
		memcpy(attr.ah_attr.grh.dgid.raw, peer->gid, sizeof peer->gid);
		attr.ah_attr.grh.sgid_index = (uint8_t)q->d->index;
		attr.ah_attr.grh.hop_limit = 64;
	}
	errno = ibv_modify_qp(q->qp, &attr,
	                      IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
	                              IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	if (errno)
		return error_errno(err, GRADCOMP_ERR_IO, "the queue pair cannot reach its peer");
	while (timeout < SLOWEST && (RETRIES + 1) * 4.096e-6 * (2 << timeout) < seconds)
		timeout++;
	/* There is a receive for everything that is sent: a peer that reports it is
	 * not ready is an error, after a few more attempts. */
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS,
	                            .timeout = (uint8_t)timeout,
	                            .retry_cnt = RETRIES,
	                            .rnr_retry = 6,
	                            .sq_psn = q->first,
	                            .max_rd_atomic = 1};
	errno = ibv_modify_qp(q->qp, &attr,
	                      IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
	                              IBV_QP_MAX_QP_RD_ATOMIC);
	return errno ? error_errno(err, GRADCOMP_ERR_IO, "cannot start a queue pair") : GRADCOMP_OK;
}

void rdma_queue_close(void *queue)
{
	rdma_queue *q = queue;
	if (q->qp)
		ibv_destroy_qp(q->qp);
	if (q->cq)
		ibv_destroy_cq(q->cq);
	if (q->channel)
		ibv_destroy_comp_channel(q->channel);
	free(q);
}
