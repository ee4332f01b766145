/* Which GPU each rank has. NCCL takes one rank a GPU: where two have the same, it says so when they have waited for each
 * other, in words about a number that no user knows, and to those two alone. Here all ranks learn it first.
 *
 * By src/init.cc of NCCL: two ranks of a host (its name and boot, or NCCL_HOSTID) must not have one PCI bus id, which is
 * that of all MIG slices of a GPU; from 2.30.7 on not one UUID, which differs between slices, unless
 * NCCL_MULTI_RANK_GPU_ENABLE=1. */
#include "plugins/collectives/nccl/comm.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BY_UUID = 23007, MAY_SHARE = 23000 }; /* versions of NCCL */

typedef struct place {
	uint64_t host; /* by what NCCL tells hosts apart */
	char bus[24], uuid[16];
	int32_t rank;
	int32_t shares; /* NCCL is told that a GPU may have several ranks */
} place;

/* A rank tells this about itself when others are to read it. */
typedef struct described {
	char host[64];
	char visible[64];
} described;

static uint64_t hash(uint64_t h, const char *text)
{
	for (; *text; text++)
		h = (h ^ (unsigned char)*text) * 0x100000001b3u;
	return h;
}

static uint64_t this_host(void)
{
	const char *given = getenv("NCCL_HOSTID");
	char name[256] = "", boot[64] = "";
	if (given)
		return hash(0xcbf29ce484222325u, given);
	gethostname(name, sizeof name - 1);
	FILE *f = fopen("/proc/sys/kernel/random/boot_id", "re");
	if (f && !fgets(boot, sizeof boot, f))
		*boot = 0;
	if (f)
		fclose(f);
	return hash(hash(0xcbf29ce484222325u, name), boot);
}

/* A rank whose GPU does not say what it is has none that another has. */
static void find(place *p, int rank)
{
	struct cudaDeviceProp properties;
	const char *several = getenv("NCCL_MULTI_RANK_GPU_ENABLE");
	int id = 0;
	memset(p, 0, sizeof *p);
	p->rank = rank;
	p->host = this_host();
	p->shares = several && strtol(several, NULL, 0) == 1;
	if (cudaGetDevice(&id) || cudaDeviceGetPCIBusId(p->bus, sizeof p->bus, id) ||
	    cudaGetDeviceProperties(&properties, id)) {
		cudaGetLastError(); /* not to be found by the application */
		*p->bus = 0;
	} else {
		memcpy(p->uuid, properties.uuid.bytes, sizeof p->uuid);
	}
}

static int by_rank(const place *a, const place *b)
{
	return (a->rank > b->rank) - (a->rank < b->rank);
}

static int compare(const place *a, const place *b, bool uuid)
{
	int way = (a->host > b->host) - (a->host < b->host);
	if (!way)
		way = uuid ? memcmp(a->uuid, b->uuid, sizeof a->uuid) : strcmp(a->bus, b->bus);
	return way;
}

static int order_bus(const void *a, const void *b)
{
	int way = compare(a, b, false);
	return way ? way : by_rank(a, b);
}

static int order_uuid(const void *a, const void *b)
{
	int way = compare(a, b, true);
	return way ? way : by_rank(a, b);
}

/* Puts the lowest ranks with a GPU that NCCL does not let them have into pair[2]; false: there are none. */
static bool find_pair(place *all, int n, int version, place *pair)
{
	bool uuid = version >= BY_UUID, found = false;
	qsort(all, (size_t)n, sizeof *all, uuid ? order_uuid : order_bus);
	for (int i = 1; i < n; i++) {
		const place *a = &all[i - 1], *b = &all[i];
		if (!*a->bus || !*b->bus || compare(a, b, uuid) || (version >= MAY_SHARE && a->shares && b->shares) ||
		    (found && a->rank > pair[0].rank))
			continue;
		pair[0] = *a;
		pair[1] = *b;
		found = true;
	}
	return found;
}

static void describe(described *d)
{
	const char *visible = getenv("CUDA_VISIBLE_DEVICES");
	memset(d, 0, sizeof *d);
	gethostname(d->host, sizeof d->host - 1);
	snprintf(d->visible, sizeof d->visible, "%s", visible ? visible : "not set");
}

static const char *uuid_text(const place *p, const char *kind, char *text, size_t room)
{
	int n = snprintf(text, room, "%s", kind);
	for (int i = 0; i < 16; i++)
		n += snprintf(text + n, room - (size_t)n, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
		              (unsigned char)p->uuid[i]);
	return text;
}

static gradcomp_status refuse(const nccl *n, const place *pair, const described *d, int version, gradcomp_error *err)
{
	const gradcomp_host *h = n->host;
	char uuid[2][48];
	if (!memcmp(pair[0].uuid, pair[1].uuid, sizeof pair[0].uuid))
		return h->fail(
			err, GRADCOMP_ERR_UNSUPPORTED,
			"nccl: ranks %d and %d of the group use the same GPU of %s, %s (PCI %s), where "
			"CUDA_VISIBLE_DEVICES is %s and %s: NCCL wants one for each; let every task have its own (srun "
			"--gpus-per-task=1) or call torch.cuda.set_device(local rank); for a test on one GPU give ranks "
			"different NCCL_HOSTID",
			pair[0].rank, pair[1].rank, d[0].host, uuid_text(&pair[0], "GPU-", uuid[0], sizeof uuid[0]),
			pair[0].bus, d[0].visible, d[1].visible);
	return h->fail(err, GRADCOMP_ERR_UNSUPPORTED,
	               "nccl: ranks %d and %d of the group have two MIG slices of one GPU of %s (PCI %s; %s and %s), "
	               "between which NCCL %d.%d.%d does not work: give each rank a whole GPU, or name a collective "
	               "that needs no NCCL (--gradcomp-collective=ring)",
	               pair[0].rank, pair[1].rank, d[0].host, pair[0].bus,
	               uuid_text(&pair[0], "MIG-", uuid[0], sizeof uuid[0]),
	               uuid_text(&pair[1], "MIG-", uuid[1], sizeof uuid[1]), version / 10000, version % 10000 / 100,
	               version % 100);
}

gradcomp_status nccl_own_gpus(nccl *n, int version, gradcomp_error *err)
{
	const int P = n->links->nranks, rank = n->links->rank;
	place *all = n->host->alloc((size_t)P * sizeof *all), pair[2];
	uint64_t *bytes = n->host->alloc((size_t)P * sizeof *bytes);
	described d[2];
	gradcomp_status st = GRADCOMP_OK;
	if (!all || !bytes)
		st = n->host->fail(err, GRADCOMP_ERR_NOMEM, "nccl: no memory for what %d ranks say of their GPUs", P);
	for (int r = 0; !st && r < P; r++)
		bytes[r] = sizeof *all;
	if (!st) {
		find(&all[rank], rank);
		st = ring_allgather(n->ring, all, bytes, err);
	}
	if (!st && find_pair(all, P, version, pair)) {
		for (int k = 0; !st && k < 2; k++) {
			describe(&d[k]);
			st = ring_broadcast(n->ring, &d[k], sizeof d[k], pair[k].rank, err);
			d[k].host[sizeof d[k].host - 1] = d[k].visible[sizeof d[k].visible - 1] = 0;
		}
		if (!st)
			st = refuse(n, pair, d, version, err);
	}
	n->host->release(all);
	n->host->release(bytes);
	return st;
}
