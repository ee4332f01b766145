/* Which device, port and GID: as the settings say, else the first active port that
 * has a GID of one of this rank's addresses. */
#define _GNU_SOURCE
#include "transport/verbs/module/rdma_device.h"

#include "base/error.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GIDS 64 /* searched on a port */

static bool choose_link_local(const unsigned char gid[16])
{
	return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80;
}

/* How well a GID fits, less is better; -1: not at all. Only RoCE v2, which crosses
 * routers and which every adapter of today has. */
static int choose_rank(const fabric_choice *c, const struct ibv_gid_entry *e)
{
	if (e->gid_type != IBV_GID_TYPE_ROCE_V2)
		return -1;
	for (int i = 0; i < c->nown; i++)
		if (!memcmp(c->own[i], e->gid.raw, 16))
			return i;
	return c->only_own || choose_link_local(e->gid.raw) ? -1 : c->nown;
}

/* Returns NULL, or why the port cannot be used. */
static const char *choose_gid(const fabric_choice *c, device *d, fabric_info *info)
{
	struct ibv_gid_entry e;
	int best = -1;
	d->index = c->gid < 0 ? 0 : c->gid;
	if (d->attr.link_layer == IBV_LINK_LAYER_INFINIBAND) {
		if (ibv_query_gid(d->context, d->port, d->index, &d->gid))
			return "it has no such GID";
		snprintf(info->key, sizeof info->key, "ib-");
		for (int i = 0; i < 8; i++)
			snprintf(info->key + 3 + 2 * i, 3, "%02x", d->gid.raw[i]);
		return NULL;
	}
	for (int i = c->gid < 0 ? 0 : c->gid; c->gid < 0 ? i < d->attr.gid_tbl_len && i < GIDS : i == c->gid; i++) {
		int rank;

		if (ibv_query_gid_ex(d->context, d->port, (uint32_t)i, &e, 0))
			continue;
		rank = c->gid < 0 ? choose_rank(c, &e) : e.gid_type == IBV_GID_TYPE_ROCE_V2 ? 0 : -1;
		if (rank < 0 || (best >= 0 && rank >= best))
			continue;
		best = rank;
		d->index = i;
		d->gid = e.gid;
	}
	if (best < 0)
		return c->gid >= 0   ? "the GID of transport.verbs_device does not exist or is not RoCE v2"
		       : c->only_own ? "it has no RoCE v2 GID of an address that transport.interface names"
		                     : "it has only link-local RoCE v2 GIDs";
	snprintf(info->key, sizeof info->key, "roce2-%d",
	         memcmp(d->gid.raw, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) ? 6 : 4);
	return NULL;
}

/* Returns NULL with d->context open, or why the device cannot be used. */
static const char *choose_port(const fabric_choice *c, struct ibv_device *dev, int only, device *d, fabric_info *info)
{
	const char *why = "it has no active port";
	struct ibv_device_attr attr;
	if (dev->transport_type != IBV_TRANSPORT_IB)
		return "it speaks neither InfiniBand nor RoCE";
	d->context = ibv_open_device(dev);
	if (!d->context)
		return "it cannot be opened (is /dev/infiniband accessible?)";
	if (ibv_query_device(d->context, &attr))
		attr.phys_port_cnt = 0;
	for (int p = 1; p <= attr.phys_port_cnt; p++) {
		const char *wrong;

		if ((only && p != only) || ibv_query_port(d->context, (uint8_t)p, &d->attr) ||
		    d->attr.state != IBV_PORT_ACTIVE)
			continue;
		d->port = (uint8_t)p;
		wrong = choose_gid(c, d, info);
		if (!wrong) {
			snprintf(info->name, sizeof info->name, "%.60s:%d GID %d", ibv_get_device_name(dev), p,
			         d->index);
			return NULL;
		}
		why = wrong;
	}
	ibv_close_device(d->context);
	d->context = NULL;
	return why;
}

gradcomp_status rdma_choose(const fabric_choice *c, device *d, fabric_info *info, gradcomp_error *err)
{
	size_t name = strcspn(c->device, ":");
	int any = !strcmp(c->device, "auto"), n = 0, seen = 0,
	    port = any || !c->device[name] ? 0 : atoi(c->device + name + 1);
	struct ibv_device **list = ibv_get_device_list(&n);
	char why[160] = "";
	for (int i = 0; list && i < n && !d->context; i++) {
		const char *is = ibv_get_device_name(list[i]), *wrong;

		if (!any && (strlen(is) != name || strncmp(is, c->device, name)))
			continue;
		seen++;
		wrong = choose_port(c, list[i], port, d, info);
		if (wrong)
			snprintf(why, sizeof why, "%.60s: %s", is, wrong);
	}
	if (list)
		ibv_free_device_list(list);
	if (d->context)
		return GRADCOMP_OK;
	if (seen)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "%s", why);
	if (any || !n)
		return error_set(err, GRADCOMP_ERR_NOTFOUND, "this machine has no RDMA device that libibverbs can use");
	return error_set(err, GRADCOMP_ERR_NOTFOUND, "transport.verbs_device=%s: there is no such RDMA device",
	                 c->device);
}
