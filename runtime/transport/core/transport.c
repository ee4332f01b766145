/* A transport by itself: created with its sockets and its endpoint record, and freed.
 * membership.c joins it to the others. */
#define _GNU_SOURCE
#include "transport/link/link_kind.h"

#include "base/error.h"
#include "transport/shm/shm.h"
#include "transport/tcp/striping.h"
#include "transport/verbs/verbs_internal.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

/* In the order of reports. */
static const link_kind *const kinds[] = {&shm_kind, &tcp_kind, &verbs_kind};
_Static_assert(sizeof kinds / sizeof *kinds <= LINK_KINDS_MAX, "a transport has a place for each");

void transport_key(const transport *t, const char *label, const void *info, size_t bytes,
                   unsigned char key[TRANSPORT_SECRET_BYTES])
{
	secret_expand(t->secret, label, info, bytes, key);
}

gradcomp_status transport_secret(unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err)
{
	return secret_random(secret, TRANSPORT_SECRET_BYTES, err);
}

void transport_release(transport *t)
{
	accept_close(t);
	links_close(t);
	tree_close(&t->tree);
	while (t->backlog.first)
		backlog_drop(&t->backlog);
	free(t->backlog.gone);
	failure_close(&t->failure);
	peer_table_free(&t->peers, t->nranks);
	pthread_mutex_destroy(&t->lock);
	free(t->interface);
	free(t->allow);
	secret_free(t->secret, TRANSPORT_SECRET_BYTES);
	free(t);
}

static gradcomp_status transport_check(const transport_options *o, gradcomp_error *err)
{
	if (o->nranks < 1 || o->rank < 0 || o->rank >= o->nranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "rank %d of %d is not a rank", o->rank, o->nranks);
	if (!(o->timeout > 0) || !(o->wait_timeout > 0))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "transport.timeout=%g and transport.wait_timeout=%g must be more than 0 seconds",
		                 o->timeout, o->wait_timeout);
	if (o->streams < 1 || o->streams > STREAMS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "transport.streams=%d is not within 1..%d", o->streams,
		                 STREAMS_MAX);
	if (o->chunk < CHUNK_MIN || o->chunk > CHUNK_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "transport.chunk=%zu is not within %u..%u bytes", o->chunk,
		                 CHUNK_MIN, CHUNK_MAX);
	if (o->frames && !record_crypto_available())
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "security.frames=%s: this gradcomp was built without libsodium, which it takes "
		                 "(configure --with-sodium)",
		                 record_crypto_mode_name(o->frames));
	return GRADCOMP_OK;
}

/* Makes all but its sockets and its peers. */
static gradcomp_status transport_new(const transport_options *o, transport **out, gradcomp_error *err)
{
	gradcomp_status st = transport_check(o, err);
	transport *t;
	*out = NULL;
	if (!st)
		st = record_crypto_start(err);
	if (st)
		return st;
	t = calloc(1, sizeof *t);
	if (!t)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the transport");
	t->o = *o;
	t->o.chunk &= ~(size_t)63;
	t->o.join_timeout = o->join_timeout > 0 ? o->join_timeout : o->timeout;
	t->failure.fd = -1;
	t->rank = o->rank;
	t->nranks = o->nranks;
	pthread_mutex_init(&t->lock, NULL);
	accept_init(t);
	st = tree_open(t);
	t->interface = strdup(o->interface ? o->interface : "");
	t->allow = strdup(o->allow && *o->allow ? o->allow : "shm,tcp");
	t->secret = secret_alloc(TRANSPORT_SECRET_BYTES);
	if (!t->interface || !t->allow || !t->secret || st || failure_open(&t->failure)) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory or descriptors for the transport");
		goto fail;
	}
	t->o.interface = t->interface;
	t->o.allow = t->allow;
	st = links_open(t, kinds, sizeof kinds / sizeof *kinds, err);
	if (st)
		goto fail;
	*out = t;
	return GRADCOMP_OK;
fail:
	transport_release(t);
	return st;
}

gradcomp_status transport_listen(const transport_options *o, transport **out, gradcomp_error *err)
{
	char unix_name[ENDPOINT_UNIX_MAX];
	size_t unix_bytes = 0;
	endpoint_node node;
	transport *t;
	int offered;
	gradcomp_status st = transport_new(o, &t, err);
	*out = NULL;
	if (st)
		return st;
	if (t->nranks > 1)
		st = accept_open(t, links_allowed(t, true), links_allowed(t, false), unix_name, &unix_bytes, err);
	if (!st)
		st = links_start(t, false, err);
	endpoint_this_node(&node);
	node.frames = (int)t->o.frames;
	node.aes = record_crypto_has_aes();
	links_tell(t, &node);
	offered = t->nranks > 1 ? t->sockets.nown : 0;
	if (!st)
		st = endpoint_write(&node, unix_name, unix_bytes, t->sockets.own, &offered, t->endpoint,
		                    sizeof t->endpoint, err);
	if (st)
		goto fail;
	if (t->nranks > 1 && offered < t->sockets.nown && o->log)
		log_line(o->log, GRADCOMP_LOG_INFO,
		         "offers %d of this machine's %d addresses, those that routes and speed speak for; "
		         "transport.interface chooses others",
		         offered, t->sockets.nown);
	*out = t;
	return GRADCOMP_OK;
fail:
	transport_release(t);
	return st;
}

gradcomp_status transport_inherit(const transport *old, const transport_options *o, const int *peers, transport **out,
                                  gradcomp_error *err)
{
	transport *t;
	gradcomp_status st = transport_new(o, &t, err);
	*out = NULL;
	if (st)
		return st;
	for (int i = 0; !st && i < old->links->n; i++)
		if (old->links->use[i].part && !old->links->use[i].kind->inherits)
			st = error_set(err, GRADCOMP_ERR_UNSUPPORTED, "a transport over %s cannot be inherited",
			               old->links->use[i].kind->name);
	if (!st)
		st = accept_inherit(t, old, err);
	if (!st)
		st = links_start(t, true, err);
	if (!st)
		st = peer_table_inherit(t, old, peers, err);
	if (st) {
		transport_release(t);
		return st;
	}
	memcpy(t->endpoint, old->endpoint, sizeof t->endpoint);
	*out = t;
	return GRADCOMP_OK;
}

const char *transport_endpoint(const transport *t)
{
	return t->endpoint;
}
