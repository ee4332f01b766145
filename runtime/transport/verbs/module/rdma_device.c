/* The module transport/verbs.so: a fabric (fabric.h) over libibverbs with reliable
 * connections. Opened when it is first wanted, so that the library and the drivers
 * behind it need not be there. */
#define _GNU_SOURCE
#include "transport/verbs/module/rdma_device.h"

#include "base/error.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

static gradcomp_status rdma_open(const fabric_choice *choice, void **out, fabric_info *info, gradcomp_error *err)
{
	device *d = calloc(1, sizeof *d);
	struct ibv_device_attr attr;
	gradcomp_status st;
	if (!d)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for an RDMA device");
	memset(info, 0, sizeof *info);
	/* A fork shares pages with the device, unless the kernel copies what is pinned or
	 * the child does not get the pages at all. The second is possible only for our own
	 * memory: a fork may need the memory of others. */
	info->foreign = ibv_is_fork_initialized() == IBV_FORK_UNNEEDED;
	if (!info->foreign)
		ibv_fork_init();
	st = rdma_choose(choice, d, info, err);
	if (st) {
		free(d);
		return st;
	}
	info->most = d->attr.max_msg_sz;
	d->pd = ibv_alloc_pd(d->context);
	if (!d->pd || ibv_query_device(d->context, &attr)) {
		st = error_errno(err, GRADCOMP_ERR_IO, "%s cannot be used", info->name);
		if (d->pd)
			ibv_dealloc_pd(d->pd);
		ibv_close_device(d->context);
		free(d);
		return st;
	}
	*out = d;
	return GRADCOMP_OK;
}

static void rdma_close(void *dev)
{
	device *d = dev;
	ibv_dealloc_pd(d->pd);
	ibv_close_device(d->context);
	free(d);
}

static gradcomp_status rdma_reg(void *dev, void *at, size_t bytes, fabric_memory *out, gradcomp_error *err)
{
	device *d = dev;
	struct ibv_mr *mr = ibv_reg_mr(d->pd, at, bytes, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	struct rlimit limit;
	if (mr) {
		*out = (fabric_memory){mr, mr->lkey, mr->rkey};
		return GRADCOMP_OK;
	}
	if ((errno == ENOMEM || errno == EPERM || errno == EAGAIN) && !getrlimit(RLIMIT_MEMLOCK, &limit) &&
	    limit.rlim_cur != RLIM_INFINITY)
		return error_set(err, GRADCOMP_ERR_RANGE,
		                 "cannot register %zu bytes: the limit of locked memory (RLIMIT_MEMLOCK, ulimit -l) is "
		                 "%llu KiB; raise it, best to unlimited",
		                 bytes, (unsigned long long)limit.rlim_cur >> 10);
	return error_errno(err, GRADCOMP_ERR_IO, "cannot register %zu bytes", bytes);
}

static void rdma_unreg(void *dev, fabric_memory *m)
{
	(void)dev;
	ibv_dereg_mr(m->handle);
	m->handle = NULL;
}

static int rdma_receive(void *queue, uint64_t id, void *at, uint32_t bytes, uint32_t local)
{
	rdma_queue *q = queue;
	struct ibv_sge where = {(uintptr_t)at, bytes, local};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &where, .num_sge = 1}, *bad;
	return ibv_post_recv(q->qp, &wr, &bad);
}

static int rdma_send(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local)
{
	rdma_queue *q = queue;
	struct ibv_sge what = {(uintptr_t)at, bytes, local};
	struct ibv_send_wr wr = {.wr_id = id,
	                         .sg_list = &what,
	                         .num_sge = 1,
	                         .opcode = IBV_WR_SEND,
	                         .send_flags = IBV_SEND_SIGNALED},
			   *bad;
	return ibv_post_send(q->qp, &wr, &bad);
}

static int rdma_write(void *queue, uint64_t id, const void *at, uint32_t bytes, uint32_t local, uint64_t to,
                      uint32_t remote, int notify, uint32_t value)
{
	rdma_queue *q = queue;
	struct ibv_sge what = {(uintptr_t)at, bytes, local};
	struct ibv_send_wr wr = {.wr_id = id,
	                         .sg_list = &what,
	                         .num_sge = 1,
	                         .opcode = notify ? IBV_WR_RDMA_WRITE_WITH_IMM : IBV_WR_RDMA_WRITE,
	                         .send_flags = IBV_SEND_SIGNALED,
	                         .imm_data = htobe32(value),
	                         .wr.rdma = {to, remote}},
			   *bad;
	return ibv_post_send(q->qp, &wr, &bad);
}

static fabric_result rdma_result(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return FABRIC_DONE;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return FABRIC_SILENT;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_LOC_ACCESS_ERR:
	case IBV_WC_LOC_PROT_ERR:
		return FABRIC_DENIED;
	default:
		return FABRIC_BROKEN;
	}
}

static int rdma_poll(void *queue, fabric_event *out, int most)
{
	rdma_queue *q = queue;
	struct ibv_wc wc[16];
	int n = ibv_poll_cq(q->cq, most < 16 ? most : 16, wc);
	for (int i = 0; i < n; i++)
		out[i] = (fabric_event){.id = wc[i].wr_id,
		                        .result = rdma_result(wc[i].status),
		                        .written = wc[i].status == IBV_WC_SUCCESS &&
		                                   wc[i].opcode == IBV_WC_RECV_RDMA_WITH_IMM,
		                        .bytes = wc[i].status == IBV_WC_SUCCESS ? wc[i].byte_len : 0,
		                        .value = wc[i].status == IBV_WC_SUCCESS ? be32toh(wc[i].imm_data) : 0,
		                        .why = ibv_wc_status_str(wc[i].status)};
	return n;
}

static int rdma_arm(void *queue)
{
	rdma_queue *q = queue;
	return ibv_req_notify_cq(q->cq, 0);
}

static void rdma_ack(void *queue)
{
	rdma_queue *q = queue;
	struct ibv_cq *cq;
	void *context;
	while (!ibv_get_cq_event(q->channel, &cq, &context))
		ibv_ack_cq_events(cq, 1);
}

GRADCOMP_EXPORT const fabric_ops gradcomp_transport_verbs = {.struct_size = sizeof gradcomp_transport_verbs,
                                                             .version = FABRIC_VERSION,
                                                             .open = rdma_open,
                                                             .close = rdma_close,
                                                             .reg = rdma_reg,
                                                             .unreg = rdma_unreg,
                                                             .queue = rdma_queue_open,
                                                             .connect = rdma_connect,
                                                             .receive = rdma_receive,
                                                             .send = rdma_send,
                                                             .write = rdma_write,
                                                             .poll = rdma_poll,
                                                             .arm = rdma_arm,
                                                             .ack = rdma_ack,
                                                             .unqueue = rdma_queue_close};
