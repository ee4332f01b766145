/* The RDMA device of this rank, the pool of registered memory for its links, and the
 * registration of callers' memory.
 *
 * A caller's memory is registered for one message and not longer. A registration that
 * outlived free() would name pages that belong to something else by then. */
#define _GNU_SOURCE
#include "transport/verbs/verbs_internal.h"

#include "base/error.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Addresses as GIDs: an IPv4 one is mapped into IPv6. */
static void verbs_own_gids(const transport *t, fabric_choice *c)
{
	c->only_own = *t->interface != '\0';
	for (int i = 0; i < t->sockets.nown && c->nown < FABRIC_OWN; i++) {
		unsigned char *gid = c->own[c->nown++];

		if (t->sockets.own[i].bytes == 16) {
			memcpy(gid, t->sockets.own[i].ip, 16);
		} else {
			memset(gid + 10, 0xff, 2);
			memcpy(gid + 12, t->sockets.own[i].ip, 4);
		}
	}
}

static gradcomp_status verbs_device_make(link_use *u, const transport *t, gradcomp_error *err)
{
	fabric_choice choice = {.device = t->o.verbs_device ? t->o.verbs_device : "auto", .gid = t->o.verbs_gid};
	verbs_device *d = calloc(1, sizeof *d);
	verbs_block *first;
	gradcomp_status st;
	if (!d)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for an RDMA device");
	verbs_own_gids(t, &choice);
	d->f = t->o.fabric;
	d->limit = t->o.verbs_memory;
	pthread_mutex_init(&d->lock, NULL);
	u->part = d;
	st = d->f->open(&choice, &d->device, &d->info, err);
	if (st) {
		d->device = NULL;
		return st;
	}
	/* The first link's memory is tried before the endpoint record names the device. */
	first = verbs_block_take(d, err);
	if (!first)
		return err->status;
	verbs_block_give(d, first);
	return GRADCOMP_OK;
}

gradcomp_status verbs_device_open(link_use *u, transport *t, gradcomp_error *err)
{
	/* A machine without a device is worth a line only if verbs was asked for. */
	gradcomp_log_level level = t->o.verbs_named ? GRADCOMP_LOG_INFO : GRADCOMP_LOG_DEBUG;
	gradcomp_status st;
	if (t->nranks == 1)
		return GRADCOMP_OK;
	if (t->o.frames) {
		st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "security.frames=%s protects only what goes over tcp",
		               record_crypto_mode_name(t->o.frames));
	} else if (!t->o.fabric) {
		st = error_set(err, GRADCOMP_ERR_NOTFOUND, "%s",
		               t->o.verbs_missing ? t->o.verbs_missing : "this program has no module for it");
	} else {
		st = verbs_device_make(u, t, err);
		/* A port that is not in use is no fault either; a limit that is too low is. */
		level = t->o.verbs_named || (st != GRADCOMP_ERR_NOTFOUND && st != GRADCOMP_ERR_UNSUPPORTED)
		                ? GRADCOMP_LOG_WARN
		                : GRADCOMP_LOG_INFO;
	}
	if (!st) {
		log_line(t->o.log, GRADCOMP_LOG_DEBUG, "verbs over %s", ((const verbs_device *)u->part)->info.name);
		return GRADCOMP_OK;
	}
	verbs_device_close(u, t);
	log_line(t->o.log, level, "verbs is not used: %s", err->text);
	return st;
}

void verbs_log_unreachable(const link_use *u, const transport *t)
{
	int over_tcp = 0, first = 0;
	for (int r = t->nranks - 1; u->part && r >= 0; r--) {
		const link_use *other = r == t->rank ? NULL : link_use_to(t, r);

		if (other && other != u && !other->kind->near) {
			over_tcp++;
			first = r;
		}
	}
	if (over_tcp)
		log_line(t->o.log, GRADCOMP_LOG_INFO,
		         "rank %d reaches %d of %d ranks over tcp and not over verbs, the first of them rank %d on %s",
		         t->rank, over_tcp, t->nranks, first, transport_host(t, first));
}

void verbs_device_close(link_use *u, const transport *t)
{
	verbs_device *d = u->part;
	u->part = NULL;
	/* In a fork the device belongs to the rank. */
	if (!d || t->forked)
		return;
	while (d->spare) {
		verbs_block *b = d->spare;

		d->spare = b->next;
		d->f->unreg(d->device, &b->memory);
		munmap(b->base, BLOCK_BYTES);
		free(b);
	}
	if (d->device)
		d->f->close(d->device);
	pthread_mutex_destroy(&d->lock);
	free(d);
}

static verbs_block *verbs_block_make(verbs_device *d, gradcomp_error *err)
{
	verbs_block *b = calloc(1, sizeof *b);
	if (!b) {
		error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a link");
		return NULL;
	}
	b->base = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (b->base == MAP_FAILED) {
		error_errno(err, GRADCOMP_ERR_NOMEM, "no memory for a link");
		free(b);
		return NULL;
	}
	if (d->f->reg(d->device, b->base, BLOCK_BYTES, &b->memory, err)) {
		munmap(b->base, BLOCK_BYTES);
		free(b);
		return NULL;
	}
	return b;
}

verbs_block *verbs_block_take(verbs_device *d, gradcomp_error *err)
{
	verbs_block *b;
	pthread_mutex_lock(&d->lock);
	b = d->spare;
	if (b) {
		d->spare = b->next;
	} else if (d->used + BLOCK_BYTES > d->limit) {
		error_set(err, GRADCOMP_ERR_RANGE,
		          "transport.verbs_memory=%zuK is used up by %zu links of %uK; raise it", d->limit >> 10,
		          d->used / BLOCK_BYTES, BLOCK_BYTES >> 10);
	} else {
		b = verbs_block_make(d, err);
		if (b)
			d->used += BLOCK_BYTES;
	}
	pthread_mutex_unlock(&d->lock);
	return b;
}

void verbs_block_give(verbs_device *d, verbs_block *b)
{
	if (!b)
		return;
	pthread_mutex_lock(&d->lock);
	b->next = d->spare;
	d->spare = b;
	pthread_mutex_unlock(&d->lock);
}

const fabric_memory *verbs_register(peer_link *l, verbs *v, request *r)
{
	verbs_device *d = v->d;
	gradcomp_error err;
	int i = 0;
	if (r->region)
		return r->region > 0 ? &v->region[r->region - 1] : NULL;
	r->region = -1;
	if (r->reduce || r->bytes < REGISTER_BYTES || !d->info.foreign ||
	    atomic_load_explicit(&d->copies, memory_order_relaxed))
		return NULL;
	while (i < REGIONS && v->region[i].handle)
		i++;
	if (i == REGIONS)
		return NULL;
	if (d->f->reg(d->device, r->buf, r->bytes, &v->region[i], &err)) {
		v->region[i].handle = NULL;
		if (!atomic_exchange(&d->copies, 1))
			log_line(l->c->t->o.log, GRADCOMP_LOG_WARN,
			         "verbs: %s; long messages are copied through gradcomp's own memory from now on",
			         err.text);
		return NULL;
	}
	r->region = (int8_t)(i + 1);
	return &v->region[i];
}

void verbs_unregister(verbs *v, request *r)
{
	if (r->region > 0)
		v->d->f->unreg(v->d->device, &v->region[r->region - 1]);
	r->region = 0;
}
