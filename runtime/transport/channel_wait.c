/* Waiting on a channel: what can be moved is moved, for a while by looking again
 * and again, then asleep, until the request is done, its peer has taken no part
 * for too long or the job has failed. */
#define _GNU_SOURCE
#include "link.h"

#include "error.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>

#define SLEEP_SECONDS 1.0
#define SLEEP_EOF_SECONDS 0.05
#define SLACK_SECONDS 60e-6
#define CROWDED_SPIN_BYTES 4096u
#define NETWORK_SPIN_BYTES (16u << 10)
#define YIELD_LOOKS 16

static int channel_progress(channel *c)
{
	unsigned inbound = atomic_load_explicit(&c->inbound, memory_order_acquire);
	int moved = 0;
	peer_link *next;

	/* Then the posted buffers are not this side's any more. */
	if (atomic_load_explicit(&c->t->failed, memory_order_acquire))
		return 0;
	for (peer_link *l = c->active; l; l = next) {
		next = l->next;
		if (!l->ops && inbound != c->adopted)
			link_adopt(l);
		if (l->ops)
			moved |= l->ops->progress(l);
		if (l->late.head)
			moved |= delay_release(l);
	}
	c->adopted = inbound;
	return moved;
}

gradcomp_status channel_failure(channel *c, const request *r, int world, gradcomp_error *err)
{
	transport *t = c->t;

	if (!c->revoked) {
		c->revoked = 1;
		for (int i = 0; i < c->n; i++)
			if (c->links[i] && c->links[i]->ops)
				c->links[i]->ops->revoke(c->links[i]);
	}
	if (world < 0 || r->done)
		return transport_failure(t, err);
	return error_set(err, t->failure.status, "%s; rank %d was waiting to %s %zu bytes %s rank %d on %s",
	                 t->failure.text, t->rank, r->sending ? "send" : "receive", r->bytes,
	                 r->sending ? "to" : "from", world, transport_host(t, world));
}

/* A sleep that ends by the clock ends late by the kernel's timer slack. Where that
 * would be noticed, before a delayed message is shown, the last of it is spent
 * yielding. */
static void channel_poll(struct pollfd *p, int n, double limit)
{
	double sleep = limit < SLEEP_EOF_SECONDS ? limit - SLACK_SECONDS : limit;
	struct timespec ts = {(time_t)sleep, (long)((sleep - (double)(time_t)sleep) * 1e9)};

	if (sleep > 0)
		ppoll(p, (nfds_t)n, &ts, NULL);
	else
		sched_yield();
}

/* Waits for the kernel to say that something can be done, at most `limit` seconds, or for
 * another descriptor if `fd` is one. Everything that could wake this thread is armed before
 * the last look, so nothing is missed. `r` may be NULL. */
static void channel_sleep(channel *c, const request *r, int fd, double limit)
{
	double begin = clock_now();
	struct pollfd *p = c->poll;
	unsigned adopted = c->adopted;
	peer_link *sleepers = NULL;
	int n = CHANNEL_POLLS;

	p[0] = (struct pollfd){c->t->failed_fd, POLLIN, 0};
	p[1] = (struct pollfd){c->inbound_fd, POLLIN, 0};
	p[2] = (struct pollfd){fd, POLLIN, 0};
	for (peer_link *l = c->active; l; l = l->next) {
		if (l->late.head && l->late.head->release < begin + limit)
			limit = l->late.head->release > begin ? l->late.head->release - begin : 0;
		if (l->eof) {
			limit = limit < SLEEP_EOF_SECONDS ? limit : SLEEP_EOF_SECONDS;
			link_judge(l, begin);
		} else if (l->ops) {
			l->slot = n;
			l->nslots = l->ops->sleep(l, p + n);
			n += l->nslots;
			l->sleeper = sleepers;
			sleepers = l;
		}
	}
	if (begin - c->asked > SLEEP_SECONDS) {
		c->asked = begin;
		for (peer_link *l = sleepers; l; l = l->sleeper)
			link_ask(l);
	}
	/* A link that came just now is not armed, and may have moved the array. */
	if (!channel_progress(c) && !(r && r->done) && c->adopted == adopted && !atomic_load(&c->t->failed)) {
		channel_poll(p, n, limit);
		/* Time in which this process was stopped is nobody's fault. */
		double slept = clock_now() - begin;

		c->idle += slept < 2 * limit ? slept : limit;
		if (p[1].revents) {
			eventfd_t events;

			eventfd_read(c->inbound_fd, &events);
		}
	}
	for (peer_link *l = sleepers; l; l = l->sleeper)
		l->ops->wake(l, c->poll + l->slot, l->nslots);
}

static void channel_overdue(channel *c, const request *r)
{
	transport *t = c->t;

	if (c->idle < t->o.wait_timeout)
		return;
	link_fail(r->link, GRADCOMP_ERR_TIMEOUT,
	          "rank %d on %s has waited %.3g s for rank %d on %s, which is alive but takes no part", t->rank,
	          transport_host(t, t->rank), t->o.wait_timeout, r->link->world,
	          transport_host(t, r->link->world));
}

/* Whether looking again and again may pay. Through shared memory always: a sleep
 * and a wake-up take longer than copying a ring full of bytes. Over a network
 * only for what is bound by latency, and not while something long is on its way:
 * the wire takes longer over the rest than a sleep does; with more ranks than CPUs
 * for still less. */
static int channel_spins(const channel *c, const request *r)
{
	size_t most = c->t->crowded ? CROWDED_SPIN_BYTES : NETWORK_SPIN_BYTES;

	if (!(c->spin > 0) || (r->link->kind != KIND_SHM && r->bytes > most))
		return 0;
	for (const peer_link *l = c->active; l; l = l->next)
		if (l->bulk)
			return 0;
	return 1;
}

/* The rank that is waited for may need this CPU: where there are more ranks than
 * CPUs each time, else now and then, since the two may stand on one CPU for a
 * while. A look over a network takes a system call anyway; one more leaves the CPU
 * to whoever has work, which may be the peer's host when machines are virtual. */
static inline void channel_relax(const channel *c, const request *r, unsigned looks)
{
	if (c->t->crowded || r->link->kind != KIND_SHM || looks % YIELD_LOOKS == 0)
		sched_yield();
#if defined(__x86_64__) || defined(__i386__)
	else
		__builtin_ia32_pause();
#endif
}

gradcomp_status channel_wait(void *ctx, gradcomp_request *req, gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	channel *c = ctx;
	double spin_end = 0;
	unsigned looks = 0;

	c->idle = 0;
	for (;;) {
		int moved;

		if (atomic_load_explicit(&c->t->failed, memory_order_acquire))
			return channel_failure(c, r, r->link ? r->link->world : -1, err);
		if (r->done)
			return GRADCOMP_OK;
		if (!r->link)
			return error_set(err, GRADCOMP_ERR_STATE, "a transfer is waited for that was refused when posted");
		moved = channel_progress(c);
		if (r->done)
			continue;
		if (moved) {
			c->idle = spin_end = 0;
			continue;
		}
		if (channel_spins(c, r)) {
			double now = clock_now();

			if (!(spin_end > 0))
				spin_end = now + c->spin;
			if (now < spin_end) {
				channel_relax(c, r, ++looks);
				continue;
			}
		}
		channel_sleep(c, r, -1, SLEEP_SECONDS);
		channel_overdue(c, r);
	}
}

gradcomp_status channel_test(void *ctx, gradcomp_request *req, int *done, gradcomp_error *err)
{
	request *r = (request *)(void *)req;
	channel *c = ctx;

	*done = 0;
	if (!r->done)
		channel_progress(c);
	if (atomic_load(&c->t->failed))
		return channel_failure(c, r, r->link ? r->link->world : -1, err);
	if (!r->link)
		return error_set(err, GRADCOMP_ERR_STATE, "a transfer is tested that was refused when posted");
	if (r->link->eof)
		link_judge(r->link, clock_now());
	*done = r->done;
	return GRADCOMP_OK;
}

gradcomp_status channel_pause(channel *c, int fd, double seconds, gradcomp_error *err)
{
	if (!atomic_load_explicit(&c->t->failed, memory_order_acquire) && !channel_progress(c))
		channel_sleep(c, NULL, fd, seconds < SLEEP_SECONDS ? seconds : SLEEP_SECONDS);
	if (atomic_load_explicit(&c->t->failed, memory_order_acquire))
		return channel_failure(c, NULL, -1, err);
	return GRADCOMP_OK;
}

int channel_done(const gradcomp_request *req)
{
	const request *r = (const request *)(const void *)req;

	return r->done;
}
