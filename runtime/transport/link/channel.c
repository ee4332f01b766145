/* Channels: open, post, wait, close. */
#define _GNU_SOURCE
#include "transport/link/link.h"

#include "base/error.h"
#include "base/thread.h"

#include <poll.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define NEAR_CHUNK_BYTES (256u << 10)
#define SLEEP_SECONDS 1.0
#define SLEEP_EOF_SECONDS 0.05
#define OVERSUBSCRIBED_SPIN_BYTES 4096u
#define NETWORK_SPIN_BYTES (16u << 10)
#define YIELD_LOOKS 16
#define SPREAD_YIELDS 8
/* Looks that find another rank on this CPU before one leaves it, at first; twice as many each time, since it
 * does not help where all CPUs are busy. */
#define SHARED_LEAST 2u
#define SHARED_MOST 1024u

/* Waiting: the thread spins for a while, then sleeps, and moves what can be moved. It
 * ends when the request is done, when its peer has taken no part for too long, or when
 * the job has failed. */

static int channel_progress(channel *c)
{
	unsigned inbound = atomic_load_explicit(&c->inbound.came, memory_order_acquire);
	int moved = 0;
	peer_link *next;
	/* The posted buffers have been given back then. */
	if (channel_failed(c))
		return 0;
	for (peer_link *l = c->active; l; l = next) {
		next = l->next;
		if (!link_up(l) && inbound != c->adopted) {
			link_adopt(l);
			/* A receive or send that was posted may have moved. */
			moved |= link_up(l);
		}
		if (link_up(l))
			moved |= l->ops->progress(l);
	}
	c->adopted = inbound;
	return moved;
}

/* The job has failed, or the channel: gives the caller's buffers back and fills *err with the
 * failure and what this rank was doing: r, with rank `world` (-1: nothing). */
static gradcomp_status channel_failure(channel *c, const request *r, int world, gradcomp_error *err)
{
	transport *t = c->t;
	const gradcomp_error *why = transport_failed(t) ? &t->failure.error : &c->why;
	if (!c->revoked) {
		c->revoked = true;
		for (int i = 0; i < c->n; i++)
			if (c->links[i] && link_up(c->links[i]))
				c->links[i]->ops->revoke(c->links[i]);
	}
	if (world < 0 || r->done)
		return error_set(err, why->status, "%s", why->text);
	return error_set(err, why->status, "%s; rank %d was waiting to %s %zu bytes %s rank %d on %s", why->text,
	                 t->rank, r->sending ? "send" : "receive", r->bytes, r->sending ? "to" : "from", world,
	                 transport_host(t, world));
}

static void channel_poll(struct pollfd *p, int n, double limit)
{
	struct timespec ts = {(time_t)limit, (long)((limit - (double)(time_t)limit) * 1e9)};
	ppoll(p, (nfds_t)n, &ts, NULL);
}

/* Sleeps at most `limit` seconds, until a link or `fd` (-1: none) is ready. Everything
 * that could wake this thread is armed before the last look, so nothing is missed. `r`
 * may be NULL. */
static void channel_sleep(channel *c, const request *r, int fd, double limit)
{
	double begin = clock_now();
	struct pollfd *p = c->poll;
	unsigned adopted = c->adopted;
	peer_link *sleepers = NULL;
	int n = CHANNEL_POLLS;
	p[0] = (struct pollfd){c->t->failure.fd, POLLIN, 0};
	p[1] = (struct pollfd){c->inbound.fd, POLLIN, 0};
	p[2] = (struct pollfd){fd, POLLIN, 0};
	for (peer_link *l = c->active; l; l = l->next) {
		if (link_ended(l)) {
			limit = limit < SLEEP_EOF_SECONDS ? limit : SLEEP_EOF_SECONDS;
			link_check_eof(l, begin);
		} else if (link_up(l)) {
			l->slot = n;
			l->nslots = l->ops->sleep(l, p + n);
			n += l->nslots;
			l->sleeper = sleepers;
			sleepers = l;
		}
	}
	if (begin - c->last_peer_check > SLEEP_SECONDS) {
		c->last_peer_check = begin;
		for (peer_link *l = sleepers; l; l = l->sleeper)
			if (l->use->kind->check)
				l->use->kind->check(l);
	}
	/* A link that was adopted just now is not armed, and may have moved the array. */
	if (!channel_progress(c) && !(r && r->done) && c->adopted == adopted && !channel_failed(c)) {
		channel_poll(p, n, limit);
		/* Time in which this process was stopped does not count. */
		double slept = clock_now() - begin;

		c->idle += slept < 2 * limit ? slept : limit;
		if (p[1].revents) {
			eventfd_t events;

			eventfd_read(c->inbound.fd, &events);
		}
	}
	for (peer_link *l = sleepers; l; l = l->sleeper)
		l->ops->wake(l, c->poll + l->slot, l->nslots);
}

static void channel_overdue(channel *c, const request *r)
{
	transport *t = c->t;
	double limit = c->deadline > 0 ? c->limit : t->o.wait_timeout;
	gradcomp_error why;
	if (c->deadline > 0 ? clock_now() < c->deadline : c->idle < limit)
		return;
	error_set(&why, GRADCOMP_ERR_TIMEOUT,
	          "rank %d on %s has waited %.3g s for rank %d on %s, which is alive but takes no part", t->rank,
	          transport_host(t, t->rank), limit, r->link->world, transport_host(t, r->link->world));
	if (c->deadline > 0)
		transport_end_channel(c, GRADCOMP_ERR_TIMEOUT, why.text);
	else
		transport_overdue(t, r->link->world, why.text);
}

/* Seconds that a wait may sleep at a time. */
static double channel_nap(const channel *c)
{
	double left = c->deadline > 0 ? c->deadline - clock_now() : SLEEP_SECONDS;
	return left > SLEEP_SECONDS ? SLEEP_SECONDS : left > 0 ? left : 0;
}

/* Returns true when spinning may pay. Through shared memory always: a sleep and a wake-up take longer than copying
 * a ring full of bytes. Over a network only for short messages, and not while a long one is under way: what is left
 * of it takes longer than a sleep does. With more ranks than CPUs the limit is lower. */
static bool channel_spins(const channel *c, const request *r)
{
	size_t most = c->t->peers.oversubscribed ? OVERSUBSCRIBED_SPIN_BYTES : NETWORK_SPIN_BYTES;
	if (!(c->spin > 0) || (!r->link->use->kind->near && r->bytes > most))
		return false;
	for (const peer_link *l = c->active; l; l = l->next)
		if (l->bulk)
			return false;
	return true;
}

/* Ranks on one CPU that yield it to each other look busy to the kernel, which then moves none of them to a CPU
 * that has nothing to do; messages take three times as long meanwhile. All but the lowest of them leave. */
static void channel_spread(channel *c)
{
	int cpu = sched_getcpu();
	bool shared = false;
	uint32_t here = (uint32_t)cpu + 1;
	if (cpu < 0)
		return;
	for (int i = 0; i < c->t->links->n; i++) {
		link_use *u = &c->t->links->use[i];

		if (u->kind->crowded)
			shared |= u->kind->crowded(c, u, here);
	}
	if (!shared || !c->leave_after) {
		c->shared = 0;
	} else if (++c->shared >= c->leave_after) {
		c->shared = 0;
		c->leave_after = thread_leave_cpu(cpu)          ? 0
		                 : c->leave_after < SHARED_MOST ? 2 * c->leave_after
		                                                : SHARED_MOST;
	}
}

/* The rank that is waited for may need this CPU. With more ranks than CPUs that is
 * assumed each time, else now and then, since both may be on one CPU. Over a network a
 * look takes a system call anyway; one more yields to whatever has work, which may be
 * the peer's host when machines are virtual. */
static inline void channel_relax(channel *c, const request *r, unsigned looks)
{
	if (c->t->peers.oversubscribed || !r->link->use->kind->near || looks % YIELD_LOOKS == 0) {
		sched_yield();
		if (!c->t->peers.oversubscribed && ++c->yields % SPREAD_YIELDS == 0)
			channel_spread(c);
	}
#if defined(__x86_64__) || defined(__i386__)
	else
		__builtin_ia32_pause();
#endif
}

static gradcomp_status channel_wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	channel *c = ctx;
	double spin_end = 0;
	unsigned looks = 0;
	c->idle = 0;
	for (;;) {
		int moved;

		if (channel_failed(c))
			return channel_failure(c, r, r->link ? r->link->world : -1, err);
		if (r->done)
			return GRADCOMP_OK;
		if (!r->link)
			return error_set(err, GRADCOMP_ERR_STATE, "wait for a transfer that was refused when posted");
		moved = channel_progress(c);
		if (r->done)
			continue;
		if (moved) {
			c->idle = spin_end = 0;
			continue;
		}
		if (channel_spins(c, r)) {
			/* The clock takes longer than a look at shared memory. */
			bool timed = !r->link->use->kind->near || looks % YIELD_LOOKS == 0;
			double now = timed ? clock_now() : 0;

			if (timed && !(spin_end > 0))
				spin_end = now + c->spin;
			if (!timed || now < spin_end) {
				channel_relax(c, r, ++looks);
				continue;
			}
		}
		channel_sleep(c, r, -1, channel_nap(c));
		channel_overdue(c, r);
	}
}

static gradcomp_status channel_test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	channel *c = ctx;
	*done = 0;
	if (!r->done)
		channel_progress(c);
	if (channel_failed(c))
		return channel_failure(c, r, r->link ? r->link->world : -1, err);
	if (!r->link)
		return error_set(err, GRADCOMP_ERR_STATE, "test of a transfer that was refused when posted");
	if (link_ended(r->link))
		link_check_eof(r->link, clock_now());
	*done = r->done;
	return GRADCOMP_OK;
}

gradcomp_status channel_pause(channel *c, int fd, double seconds, gradcomp_error *err)
{
	if (!channel_failed(c) && !channel_progress(c))
		channel_sleep(c, NULL, fd, seconds < SLEEP_SECONDS ? seconds : SLEEP_SECONDS);
	if (channel_failed(c))
		return channel_failure(c, NULL, -1, err);
	return GRADCOMP_OK;
}

gradcomp_status channel_linger(channel *c, int fd, double seconds, gradcomp_error *err)
{
	double end = 0;
	for (unsigned looks = 1; c->spin > 0 && !channel_failed(c); looks++) {
		if (channel_progress(c))
			return GRADCOMP_OK;
		if (looks % YIELD_LOOKS && !c->t->peers.oversubscribed)
			continue;
		double now = clock_now();
		if (end > 0 && now > end)
			break;
		end = end > 0 ? end : now + c->spin;
		sched_yield();
	}
	return channel_pause(c, fd, seconds, err);
}

void channel_apart(channel *c, bool apart, double seconds)
{
	c->apart = apart;
	c->limit = seconds;
	c->deadline = seconds > 0 ? clock_now() + seconds : 0;
}

bool channel_done(const gradcomp_request *req)
{
	const request *r = (const request *)(const void *)req;
	return r->done;
}

static gradcomp_status channel_link(channel *c, int peer, peer_link **l, gradcomp_error *err)
{
	if (peer < 0 || peer >= c->n || peer == c->me)
		return error_set(err, GRADCOMP_ERR_INVALID, "%d is no peer of rank %d in a group of %d", peer, c->me,
		                 c->n);
	*l = link_get(c, peer);
	return *l ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a link to rank %d", c->ranks[peer]);
}

static gradcomp_status channel_post(channel *c, int peer, request *r, gradcomp_error *err)
{
	peer_link *l;
	gradcomp_status st;
	r->done = 0;
	r->link = NULL;
	st = channel_link(c, peer, &l, err);
	if (st)
		return st;
	if (channel_failed(c))
		return channel_failure(c, r, l->world, err);
	link_post(l, r);
	if (!link_up(l))
		link_connect(l);
	if (channel_failed(c))
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
	r->receivers = 0;
	return channel_post(ctx, peer, r, err);
}

/* Checks that all are different peers, and counts those that are reached over the kind that can send to several at
 * once. */
static gradcomp_status channel_receivers(channel *c, const int *peers, int n, link_use **over, int *receivers,
                                         gradcomp_error *err)
{
	*over = NULL;
	*receivers = 0;
	c->multicasts++;
	for (int i = 0; i < n; i++) {
		peer_link *l;
		gradcomp_status st = channel_link(c, peers[i], &l, err);

		if (st)
			return st;
		if (l->multicasts == c->multicasts)
			return error_set(err, GRADCOMP_ERR_INVALID, "%d is named twice as a peer of rank %d", peers[i],
			                 c->me);
		l->multicasts = c->multicasts;
		if (!l->use || !l->use->kind->multicast || (*over && *over != l->use))
			continue;
		*over = l->use;
		++*receivers;
	}
	return GRADCOMP_OK;
}

static gradcomp_status channel_multicast(void *ctx, const int *peers, int n, const void *buf, size_t bytes,
                                         gradcomp_request *reqs, gradcomp_error *err)
{
	channel *c = ctx;
	link_use *over;
	int receivers;
	uint64_t first = 0;
	gradcomp_status st = channel_receivers(c, peers, n, &over, &receivers, err);
	if (st)
		return st;
	if (receivers < 2 || !over->kind->multicast(c, over, bytes, &first))
		receivers = 0;
	for (int i = 0; !st && i < n; i++) {
		request *r = (request *)(void *)&reqs[i];

		*r = (request){.buf = (unsigned char *)(uintptr_t)buf,
		               .bytes = bytes,
		               .sending = 1,
		               .first = first,
		               .receivers = c->links[peers[i]]->use == over ? receivers : 0};
		st = channel_post(c, peers[i], r, err);
	}
	return st;
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
	/* With no elements, this only asks whether the table knows the pair. */
	gradcomp_status st = c->t->o.operators->reduce(NULL, acc, acc, 0, dtype, op);
	if (st || !gradcomp_dtype_bytes(dtype))
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED, "operation %d has no meaning on elements of type %d",
		                 op, dtype);
	r->buf = acc;
	r->bytes = count * gradcomp_dtype_bytes(dtype);
	r->sending = 0;
	r->reduce = 1;
	r->dtype = dtype;
	r->op = op;
	return channel_post(c, peer, r, err);
}

gradcomp_status channel_put(channel *c, int peer, const void *buf, size_t bytes, gradcomp_error *err)
{
	gradcomp_request req;
	gradcomp_status st = channel_send(c, peer, buf, bytes, &req, err);
	return st ? st : channel_wait(c, &req, err);
}

gradcomp_status channel_get(channel *c, int peer, void *buf, size_t bytes, gradcomp_error *err)
{
	gradcomp_request req;
	gradcomp_status st = channel_recv(c, peer, buf, bytes, &req, err);
	return st ? st : channel_wait(c, &req, err);
}

void channel_on_demand(channel *c)
{
	c->on_demand = true;
	/* Peers may have connected before the channel was open. */
	c->heard = atomic_load(&c->inbound.came) - 1;
}

void channel_dismiss(transport *t, uint64_t id, const int *ranks, int n, int me, bool all)
{
	unsigned char in;
	gradcomp_request r;
	channel *c;
	if (channel_open(t, id, ranks, n, me, &c, NULL))
		return;
	channel_on_demand(c);
	channel_apart(c, true, 0);
	/* Connected, and then closed in good order. */
	for (int peer, seen = 0; seen < n && (peer = channel_caller(c)) >= 0; seen++)
		channel_recv(c, peer, &in, 1, &r, NULL);
	for (int peer = 0; all && peer < n; peer++)
		if (ranks[peer] < t->rank && !c->links[peer])
			channel_recv(c, peer, &in, 1, &r, NULL);
	channel_close(c);
	backlog_bury(t, id);
}

int channel_caller(channel *c)
{
	transport *t = c->t;
	unsigned inbound = atomic_load_explicit(&c->inbound.came, memory_order_acquire);
	int peer = -1;
	if (inbound == c->heard)
		return -1;
	pthread_mutex_lock(&t->lock);
	for (backlog_conn **at = &t->backlog.first, *p; peer < 0 && (p = *at);) {
		bool call = p->h.kind == HELLO_CALL;

		for (int i = 0; p->h.channel == c->inbound.id && peer < 0 && i < c->n; i++)
			if (c->ranks[i] == (int)p->h.from && (call || !c->links[i]))
				peer = i;
		if (peer < 0 || !call) {
			at = &p->next;
			continue;
		}
		free(backlog_pull(&t->backlog, at));
	}
	pthread_mutex_unlock(&t->lock);
	if (peer < 0)
		c->heard = inbound;
	return peer;
}

void channel_hang_up(channel *c, int peer)
{
	peer_link *l = c->links[peer];
	if (!l)
		return;
	c->links[peer] = NULL;
	c->npoll -= l->polls;
	if (l->state >= PEER_OPEN)
		atomic_fetch_sub_explicit(&l->use->pairs, 1, memory_order_relaxed);
	link_forget(l);
	link_free(l);
	/* The peer may have connected anew, which channel_caller() has passed over. */
	c->heard = atomic_load(&c->inbound.came) - 1;
}

void channel_may_end(channel *c, int peer)
{
	if (c->links[peer])
		c->links[peer]->may_end = true;
}

bool channel_ended(const channel *c, int peer)
{
	return c->links[peer] && c->links[peer]->state == PEER_LEFT;
}

static gradcomp_status channel_job_failure(void *ctx, gradcomp_error *err)
{
	channel *c = ctx;
	return channel_failed(c) ? channel_failure(c, NULL, -1, err) : GRADCOMP_OK;
}

/* Numbers the nodes of the group, and describes its links. */
static int channel_describe(channel *c)
{
	transport *t = c->t;
	int32_t *number = calloc((size_t)t->peers.nnodes, sizeof *number); /* plus 1; 0: not seen */
	int nodes = 0;
	bool network = false;
	if (!number)
		return -1;
	for (int i = 0; i < c->n; i++) {
		int32_t *at = &number[t->peers.node[c->ranks[i]]];

		if (!*at)
			*at = ++nodes;
		c->node[i] = *at - 1;
		const link_use *u = i == c->me ? NULL : link_use_to(t, c->ranks[i]);
		network |= i != c->me && !(u && u->kind->near);
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
	                          .chunk = network ? t->o.chunk : NEAR_CHUNK_BYTES,
	                          .recv_reduce = t->o.operators ? channel_recv_reduce : NULL,
	                          .failure = channel_job_failure,
	                          .multicast = channel_multicast};
	return 0;
}

gradcomp_status channel_open(transport *t, uint64_t id, const int *ranks, int n, int me, channel **out,
                             gradcomp_error *err)
{
	channel *c;
	*out = NULL;
	for (int i = 0; i < n; i++)
		if (ranks[i] < 0 || ranks[i] >= t->nranks)
			return error_set(err, GRADCOMP_ERR_INVALID, "%d is no rank of a job of %d", ranks[i],
			                 t->nranks);
	if (me < 0 || me >= n || ranks[me] != t->rank)
		return error_set(err, GRADCOMP_ERR_INVALID, "rank %d is not number %d of the group", t->rank, me);
	c = calloc(1, sizeof *c);
	if (!c)
		goto nomem;
	c->inbound.fd = -1;
	c->t = t;
	c->inbound.id = id;
	c->n = n;
	c->me = me;
	c->npoll = CHANNEL_POLLS;
	c->leave_after = SHARED_LEAST;
	c->spin = 1e-6 * t->o.spin_us;
	c->ranks = malloc((size_t)n * sizeof *c->ranks);
	c->node = malloc((size_t)n * sizeof *c->node);
	c->links = calloc((size_t)n, sizeof *c->links);
	c->poll = malloc(c->npoll * sizeof *c->poll);
	if (!c->ranks || !c->node || !c->links || !c->poll)
		goto nomem;
	memcpy(c->ranks, ranks, (size_t)n * sizeof *ranks);
	if (channel_describe(c) || backlog_listen(t, &c->inbound))
		goto nomem;
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
	if (!c)
		return;
	backlog_leave(c->t, &c->inbound);
	for (int i = 0; i < c->n; i++)
		link_free(c->links[i]);
	for (int i = 0; i < c->t->links->n; i++)
		if (c->group[i])
			c->t->links->use[i].kind->leave(c->group[i]);
	free(c->ranks);
	free(c->node);
	free(c->links);
	free(c->poll);
	free(c);
}

uint64_t channel_sent(const channel *c)
{
	return atomic_load_explicit(&c->sent, memory_order_relaxed);
}

bool channel_busiest(channel *c, link_load *out)
{
	*out = (link_load){.rank = -1};
	for (int i = 0; i < c->n; i++) {
		const peer_link *l = c->links[i];
		link_load of = {0};

		if (!l || l->state != PEER_OPEN || !l->use->kind->load || !l->use->kind->load(l, &of) ||
		    of.busy_s <= out->busy_s)
			continue;
		*out = of;
		out->rank = l->world;
	}
	return out->rank >= 0;
}
