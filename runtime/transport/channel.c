/* Channels: opened, posted to, closed. They are on the transport's list, where
 * the control thread leaves the connections of peers that came first. */
#define _GNU_SOURCE
#include "link.h"

#include "error.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define SHM_CHUNK_BYTES (256u << 10)

static gradcomp_status channel_post(channel *c, int peer, request *r, gradcomp_error *err)
{
	peer_link *l;

	r->done = 0;
	r->link = NULL;
	if (peer < 0 || peer >= c->n || peer == c->me)
		return error_set(err, GRADCOMP_ERR_INVALID, "%d is no peer of rank %d in a group of %d", peer, c->me,
		                 c->n);
	if (atomic_load_explicit(&c->t->failed, memory_order_acquire))
		return channel_failure(c, r, c->ranks[peer], err);
	l = link_get(c, peer);
	if (!l)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", c->ranks[peer]);
	link_post(l, r);
	if (!l->ops)
		link_connect(l);
	if (atomic_load_explicit(&c->t->failed, memory_order_acquire))
		return channel_failure(c, r, l->world, err);
	return GRADCOMP_OK;
}

static gradcomp_status channel_send(void *ctx, int peer, const void *buf, size_t bytes, gradcomp_request *req,
                                    gradcomp_error *err)
{
	request *r = (request *)(void *)req;

	r->buf = (unsigned char *)(uintptr_t)buf;
	r->bytes = bytes;
	r->sending = 1;
	r->reduce = 0;
	return channel_post(ctx, peer, r, err);
}

static gradcomp_status channel_recv(void *ctx, int peer, void *buf, size_t bytes, gradcomp_request *req,
                                    gradcomp_error *err)
{
	request *r = (request *)(void *)req;

	r->buf = buf;
	r->bytes = bytes;
	r->sending = r->reduce = 0;
	return channel_post(ctx, peer, r, err);
}

static gradcomp_status channel_recv_reduce(void *ctx, int peer, void *acc, size_t count, gradcomp_dtype dtype,
                                           gradcomp_op op, gradcomp_request *req, gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	channel *c = ctx;
	/* Asked with no elements, the table says whether it knows the pair. */
	gradcomp_status st = c->t->o.operators->reduce(NULL, acc, acc, 0, dtype, op);

	if (st || !gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "operation %d has no meaning on elements of type %d", op,
		                 dtype);
	r->buf = acc;
	r->bytes = count * gradcomp_dtype_bytes(dtype);
	r->sending = 0;
	r->reduce = 1;
	r->dtype = dtype;
	r->op = op;
	return channel_post(c, peer, r, err);
}

static gradcomp_status channel_job_failure(void *ctx, gradcomp_error *err)
{
	const channel *c = ctx;

	return transport_failure(c->t, err);
}

/* The group's own node numbers, and what its links offer. */
static int channel_describe(channel *c)
{
	transport *t = c->t;
	int32_t *number = calloc((size_t)t->nnodes, sizeof *number); /* plus 1; 0: not seen */
	int nodes = 0, network = 0;

	if (!number)
		return -1;
	for (int i = 0; i < c->n; i++) {
		int32_t *at = &number[t->node[c->ranks[i]]];

		if (!*at)
			*at = ++nodes;
		c->node[i] = *at - 1;
		network |= i != c->me && connect_kind(t, c->ranks[i]) != KIND_SHM;
	}
	free(number);
	c->api = (gradcomp_links){.struct_size = sizeof c->api,
	                          .rank = c->me,
	                          .nranks = c->n,
	                          .nnodes = nodes,
	                          .node = c->node,
	                          .ctx = c,
	                          .send = channel_send,
	                          .recv = channel_recv,
	                          .wait = channel_wait,
	                          .test = channel_test,
	                          .chunk = network ? t->o.chunk : SHM_CHUNK_BYTES,
	                          .recv_reduce = t->o.operators ? channel_recv_reduce : NULL,
	                          .failure = channel_job_failure};
	return 0;
}

gradcomp_status channel_open(transport *t, uint64_t id, const int *ranks, int n, int me, channel **out,
                             gradcomp_error *err)
{
	channel *c;

	*out = NULL;
	for (int i = 0; i < n; i++)
		if (ranks[i] < 0 || ranks[i] >= t->nranks)
			return error_set(err, GRADCOMP_ERR_INVALID, "%d is no rank of a job of %d", ranks[i], t->nranks);
	if (me < 0 || me >= n || ranks[me] != t->rank)
		return error_set(err, GRADCOMP_ERR_INVALID, "rank %d is not at place %d of the group", t->rank, me);
	c = calloc(1, sizeof *c);
	if (!c)
		goto nomem;
	c->inbound_fd = -1;
	c->t = t;
	c->id = id;
	c->n = n;
	c->me = me;
	c->npoll = CHANNEL_POLLS;
	c->spin = 1e-6 * t->o.spin_us;
	c->ranks = malloc((size_t)n * sizeof *c->ranks);
	c->node = malloc((size_t)n * sizeof *c->node);
	c->links = calloc((size_t)n, sizeof *c->links);
	c->poll = malloc(c->npoll * sizeof *c->poll);
	c->inbound_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!c->ranks || !c->node || !c->links || !c->poll || c->inbound_fd < 0)
		goto nomem;
	memcpy(c->ranks, ranks, (size_t)n * sizeof *ranks);
	if (channel_describe(c))
		goto nomem;
	pthread_mutex_lock(&t->lock);
	c->next = t->channels;
	t->channels = c;
	pthread_mutex_unlock(&t->lock);
	*out = c;
	return GRADCOMP_OK;
nomem:
	if (c) {
		c->n = 0;
		channel_close(c);
	}
	return error_set(err, GRADCOMP_ERR_NOMEM, "no memory or descriptors for a channel of %d ranks", n);
}

const gradcomp_links *channel_links(const channel *c)
{
	return &c->api;
}

void channel_close(channel *c)
{
	transport *t;

	if (!c)
		return;
	t = c->t;
	pthread_mutex_lock(&t->lock);
	for (channel **at = &t->channels; *at; at = &(*at)->next)
		if (*at == c) {
			*at = c->next;
			break;
		}
	pthread_mutex_unlock(&t->lock);
	for (int i = 0; i < c->n; i++)
		link_free(c->links[i]);
	if (c->inbound_fd >= 0)
		close(c->inbound_fd);
	free(c->ranks);
	free(c->node);
	free(c->links);
	free(c->poll);
	free(c);
}

int channel_park(transport *t, const hello *h, int fd, int passed)
{
	/* Every rank may be ahead of this one by a few channels, no more. */
	int most = 1024 + 16 * t->nranks, done = -1;
	parked *p = malloc(sizeof *p);

	if (!p) {
		char text[CULPRIT_TEXT];

		/* The peer has been welcomed, and would wait. */
		snprintf(text, sizeof text, "rank %d on %s: no memory for a connection of rank %u", t->rank,
		         transport_host(t, t->rank), h->from);
		transport_fail(t, GRADCOMP_ERR_NOMEM, t->rank, text);
		return -1;
	}
	*p = (parked){.h = *h, .fd = fd, .passed = passed};
	pthread_mutex_lock(&t->lock);
	if (t->nparked < most) {
		parked **end = &t->parked;

		while (*end)
			end = &(*end)->next;
		*end = p;
		t->nparked++;
		done = 0;
		for (channel *c = t->channels; c; c = c->next)
			if (c->id == h->channel) {
				atomic_fetch_add_explicit(&c->inbound, 1, memory_order_release);
				eventfd_write(c->inbound_fd, 1);
			}
	}
	pthread_mutex_unlock(&t->lock);
	if (done)
		free(p);
	return done;
}

uint64_t channel_sent(const channel *c)
{
	return atomic_load_explicit(&c->sent, memory_order_relaxed);
}
