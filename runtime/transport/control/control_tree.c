/* The control tree: rank r's parent is (r-1)/2. The messages are in doc/dev/wire-format.md. */
#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include "base/error.h"
#include "transport/control/survey.h"
#include "transport/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define HEARTBEAT_SECONDS 1.0

gradcomp_status tree_open(transport *t)
{
	control_tree *tree = &t->tree;
	pthread_condattr_t attr;
	for (int i = 0; i < TREE_NEIGHBOURS; i++) {
		int r = i == TREE_PARENT ? (t->rank ? (t->rank - 1) / 2 : -1) : 2 * t->rank + i;

		tree->near[i].rank = r < t->nranks ? r : -1;
		tree->near[i].fd = -1;
	}
	memset(tree->rates, 0xff, sizeof tree->rates); /* SURVEY_UNKNOWN */
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&tree->changed, &attr);
	pthread_condattr_destroy(&attr);
	tree->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	return tree->wake_fd >= 0 ? GRADCOMP_OK : GRADCOMP_ERR_NOMEM;
}

void tree_close(control_tree *tree)
{
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		tree_drop(&tree->near[i]);
	if (tree->wake_fd >= 0)
		close(tree->wake_fd);
	pthread_cond_destroy(&tree->changed);
	free(tree->told);
}

void tree_wake(transport *t)
{
	eventfd_write(t->tree.wake_fd, 1);
}

/* Writes what the socket takes; the rest stays. */
static void neighbour_flush(neighbour *n)
{
	ssize_t sent = n->unsent ? send(n->fd, n->out, n->unsent, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
	if (sent > 0) {
		n->unsent -= (unsigned)sent;
		memmove(n->out, n->out + sent, n->unsent);
	}
}

/* Sends a message to one neighbour. The queue is bounded: heartbeats and tallies are left out while something waits in
 * it, and FAIL is the last message that matters. */
static void neighbour_send_msg(neighbour *n, const ctrl_msg *f)
{
	bool may_be_lost = f->type == CTRL_HEARTBEAT || f->type == CTRL_TALLY;
	if (n->fd < 0 || n->unsent + CTRL_MSG_MAX > sizeof n->out || (may_be_lost && n->unsent))
		return;
	n->unsent += (unsigned)ctrl_msg_write(n->out + n->unsent, f, n->crypto);
	neighbour_flush(n);
}

static void neighbour_send(neighbour *n, int type, int a, int b, const char *text)
{
	neighbour_send_msg(n, &(ctrl_msg){type, a, b, text, text ? strnlen(text, CTRL_MSG_TEXT) : 0});
}

/* FAIL is sent to every neighbour before anybody here can act on the failure, so a
 * process that exits on the error has passed it on. */
void tree_fail(transport *t, gradcomp_status status, int culprit, const char *text)
{
	if (transport_failed(t) || t->tree.left)
		return;
	error_set(&t->failure.error, status, "%.*s", CULPRIT_TEXT, text);
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		neighbour_send(&t->tree.near[i], CTRL_FAIL, status, culprit, t->failure.error.text);
	failure_set(&t->failure);
	pthread_cond_broadcast(&t->tree.changed);
}

/* Returns PEER_LOST for a rank that is gone where the job may go on without it. */
static gradcomp_status if_lost(const transport *t, gradcomp_status status)
{
	bool gone = status == GRADCOMP_ERR_PEER || status == GRADCOMP_ERR_TIMEOUT;
	return t->o.outlives && gone ? GRADCOMP_ERR_PEER_LOST : status;
}

static void declare(transport *t, gradcomp_status status, int culprit, const char *text)
{
	pthread_mutex_lock(&t->lock);
	tree_fail(t, status, culprit, text);
	pthread_mutex_unlock(&t->lock);
	tree_wake(t);
}

void transport_fail(transport *t, gradcomp_status status, int culprit, const char *text)
{
	/* Neighbours take no status that is none of a failure. */
	declare(t, status < 0 ? if_lost(t, status) : GRADCOMP_ERR_INTERNAL, culprit, text);
}

void transport_overdue(transport *t, int culprit, const char *text)
{
	declare(t, GRADCOMP_ERR_TIMEOUT, culprit, text);
}

int tree_attach(transport *t, int rank, int fd, const hello *h)
{
	record_crypto *crypto = h->frames ? record_crypto_new(t->secret, h, (int)h->from == t->rank) : NULL;
	int done = -1;
	if (h->frames && !crypto)
		return -1;
	pthread_mutex_lock(&t->lock);
	for (int i = 0; i < TREE_NEIGHBOURS && done; i++) {
		neighbour *n = &t->tree.near[i];

		if (n->rank != rank || n->fd >= 0)
			continue;
		n->fd = fd;
		n->crypto = crypto;
		n->last_recv = clock_now();
		n->have = n->unsent = 0;
		/* It joined after the failure was reported. */
		if (transport_failed(t))
			neighbour_send(n, CTRL_FAIL, t->failure.error.status, -1, t->failure.error.text);
		done = 0;
	}
	pthread_cond_broadcast(&t->tree.changed);
	pthread_mutex_unlock(&t->lock);
	if (done)
		record_crypto_free(crypto);
	tree_wake(t);
	return done;
}

void tree_leave(transport *t)
{
	neighbour *parent = &t->tree.near[TREE_PARENT];
	if (!t->tree.leaving || t->tree.leave_sent || transport_failed(t))
		return;
	for (int i = TREE_LEFT; i <= TREE_RIGHT; i++)
		if (t->tree.near[i].rank >= 0 && !t->tree.near[i].left)
			return;
	t->tree.leave_sent = true;
	if (parent->rank >= 0) {
		neighbour_send(parent, CTRL_LEAVE, t->rank, 0, NULL);
		return;
	}
	t->tree.left = true;
	for (int i = TREE_LEFT; i <= TREE_RIGHT; i++)
		neighbour_send(&t->tree.near[i], CTRL_LEFT, 0, 0, NULL);
	pthread_cond_broadcast(&t->tree.changed);
}

/* The message that says t->tree.rates. */
static void neighbour_send_rates(const transport *t, neighbour *n, int type)
{
	unsigned char text[4 * NETWORKS_MAX];
	ctrl_msg f = {type, t->rank, 0, (const char *)text, 4 * (size_t)t->peers.networks.n};
	for (int k = 0; k < t->peers.networks.n; k++)
		put32(text + 4 * (size_t)k, t->tree.rates[k]);
	neighbour_send_msg(n, &f);
}

/* All ranks have said theirs. */
static void tree_rated(transport *t)
{
	for (int k = 0; k < t->peers.networks.n; k++)
		t->peers.networks.of[k].rate = t->tree.rates[k] == SURVEY_UNKNOWN ? 0 : t->tree.rates[k];
	t->peers.networks.measured = true;
	for (int i = TREE_LEFT; i <= TREE_RIGHT; i++)
		neighbour_send_rates(t, &t->tree.near[i], CTRL_RATED);
	pthread_cond_broadcast(&t->tree.changed);
}

void tree_rates(transport *t, const uint32_t *rate)
{
	for (int k = 0; rate && k < t->peers.networks.n; k++)
		t->tree.rates[k] = rate[k] < t->tree.rates[k] ? rate[k] : t->tree.rates[k];
	t->tree.rates_own |= rate != NULL;
	if (!t->tree.rates_own || t->tree.rates_sent || transport_failed(t))
		return;
	for (int i = TREE_LEFT; i <= TREE_RIGHT; i++)
		if (t->tree.near[i].rank >= 0 && !t->tree.near[i].rated)
			return;
	t->tree.rates_sent = true;
	if (t->tree.near[TREE_PARENT].rank >= 0)
		neighbour_send_rates(t, &t->tree.near[TREE_PARENT], CTRL_RATES);
	else
		tree_rated(t);
}

/* Called with the lock held: rank 0 keeps it, without memory it does not; others pass it on. */
static void tree_tally_take(transport *t, const ctrl_msg *f)
{
	control_tree *tree = &t->tree;
	if (t->rank) {
		neighbour_send_msg(&tree->near[TREE_PARENT], f);
		return;
	}
	if (!tree->told)
		tree->told = calloc((size_t)t->nranks, sizeof *tree->told);
	if (!tree->told)
		return;
	tree_tally *at = &tree->told[f->a];
	at->bytes = (uint16_t)f->bytes;
	memcpy(at->data, f->text, f->bytes);
	tree->told_last += f->b && !at->last;
	at->last |= f->b;
	if (tree->told_last == t->nranks)
		pthread_cond_broadcast(&tree->changed);
}

void transport_tally(transport *t, const void *data, size_t bytes, bool last)
{
	const ctrl_msg f = {CTRL_TALLY, t->rank, last, data, bytes < TALLY_BYTES_MAX ? bytes : TALLY_BYTES_MAX};
	pthread_mutex_lock(&t->lock);
	if (!transport_failed(t) && !t->tree.leave_sent)
		tree_tally_take(t, &f);
	bool waits = t->rank && t->tree.near[TREE_PARENT].unsent;
	pthread_mutex_unlock(&t->lock);
	if (waits)
		tree_wake(t);
}

size_t transport_told(transport *t, int rank, unsigned char out[TALLY_BYTES_MAX])
{
	size_t bytes = 0;
	pthread_mutex_lock(&t->lock);
	if (t->tree.told) {
		bytes = t->tree.told[rank].bytes;
		memcpy(out, t->tree.told[rank].data, bytes);
	}
	pthread_mutex_unlock(&t->lock);
	return bytes;
}

void tree_flush(transport *t, double seconds)
{
	double until = clock_now() + seconds;
	for (int i = 0; i < TREE_NEIGHBOURS; i++) {
		neighbour *n = &t->tree.near[i];

		while (n->fd >= 0 && n->unsent && clock_now() < until) {
			struct pollfd p = {n->fd, POLLOUT, 0};
			unsigned before = n->unsent;

			poll(&p, 1, 50);
			neighbour_flush(n);
			if (n->unsent == before && p.revents & (POLLERR | POLLHUP))
				break;
		}
	}
}

/* Handles one whole message of neighbour i. 0, or -1 when it is not valid. */
static int neighbour_message(transport *t, int i, const ctrl_msg *f)
{
	neighbour *n = &t->tree.near[i];
	char text[CULPRIT_TEXT + 1];
	uint32_t rate[NETWORKS_MAX] = {0};
	bool rates = f->type == CTRL_RATES || f->type == CTRL_RATED;
	if (rates && (t->peers.networks.measured || f->bytes != 4 * (size_t)t->peers.networks.n))
		return -1;
	for (size_t k = 0; rates && k < f->bytes / 4; k++)
		rate[k] = get32((const unsigned char *)f->text + 4 * k);
	switch (f->type) {
	case CTRL_HEARTBEAT:
		return 0;
	case CTRL_FAIL:
		if (f->a >= 0 || f->a < GRADCOMP_ERR_OVERFLOW || f->b < -1 || f->b >= t->nranks)
			return -1;
		memcpy(text, f->text, f->bytes);
		text[f->bytes] = '\0';
		tree_fail(t, f->a, f->b, text);
		return 0;
	case CTRL_LEAVE:
		if (i == TREE_PARENT || n->left)
			return -1;
		n->left = true;
		tree_leave(t);
		return 0;
	case CTRL_LEFT:
		if (i != TREE_PARENT || (!t->tree.leave_sent && !transport_failed(t)))
			return -1;
		if (transport_failed(t))
			return 0;
		t->tree.left = true;
		for (int c = TREE_LEFT; c <= TREE_RIGHT; c++)
			neighbour_send(&t->tree.near[c], CTRL_LEFT, 0, 0, NULL);
		pthread_cond_broadcast(&t->tree.changed);
		return 0;
	case CTRL_RATES:
		if (i == TREE_PARENT || n->rated)
			return -1;
		n->rated = true;
		for (int k = 0; k < t->peers.networks.n; k++)
			t->tree.rates[k] = rate[k] < t->tree.rates[k] ? rate[k] : t->tree.rates[k];
		tree_rates(t, NULL);
		return 0;
	case CTRL_RATED:
		if (i != TREE_PARENT || !t->tree.rates_sent)
			return -1;
		memcpy(t->tree.rates, rate, sizeof rate);
		tree_rated(t);
		return 0;
	case CTRL_TALLY:
		/* It comes from below, and those below have higher numbers. */
		if (i == TREE_PARENT || f->a <= t->rank || f->a >= t->nranks || (f->b & ~1) ||
		    f->bytes > TALLY_BYTES_MAX)
			return -1;
		tree_tally_take(t, f);
		return 0;
	default:
		return -1;
	}
}

void tree_drop(neighbour *n)
{
	if (n->fd >= 0)
		close(n->fd);
	n->fd = -1;
	record_crypto_free(n->crypto);
	n->crypto = NULL;
}

static void neighbour_lost(transport *t, neighbour *n, gradcomp_status status, const char *how)
{
	char text[CULPRIT_TEXT];
	tree_drop(n);
	/* After LEFT a closed connection is no failure: tree_fail() knows. */
	snprintf(text, sizeof text, "rank %d on %s %s", n->rank, transport_host(t, n->rank), how);
	tree_fail(t, if_lost(t, status), n->rank, text);
}

static void neighbour_read(transport *t, int i)
{
	neighbour *n = &t->tree.near[i];
	ctrl_msg f;
	int taken;
	for (;;) {
		ssize_t got = recv(n->fd, n->in + n->have, sizeof n->in - n->have, MSG_DONTWAIT);

		if (got < 0 && (errno == EAGAIN || errno == EINTR))
			return;
		if (got <= 0) {
			neighbour_lost(t, n, GRADCOMP_ERR_PEER, "died (its connection closed)");
			return;
		}
		n->last_recv = clock_now();
		n->have += (unsigned)got;
		while ((taken = ctrl_msg_read(n->in, n->have, n->crypto, &f))) {
			if (taken == CTRL_MSG_ALTERED) {
				neighbour_lost(t, n, GRADCOMP_ERR_AUTH,
				               "sent a control message that was " RECORD_TAMPERED);
				return;
			}
			if (taken < 0) {
				neighbour_lost(t, n, GRADCOMP_ERR_INTERNAL, "sent a malformed control message");
				return;
			}
			if (neighbour_message(t, i, &f)) {
				neighbour_lost(t, n, GRADCOMP_ERR_INTERNAL, "sent a control message out of order");
				return;
			}
			n->have -= (unsigned)taken;
			memmove(n->in, n->in + taken, n->have);
		}
	}
}

static double tree_interval(const transport *t)
{
	return t->o.timeout / 5 < HEARTBEAT_SECONDS ? t->o.timeout / 5 : HEARTBEAT_SECONDS;
}

/* Sends heartbeats and notices silence. `slept` is by how much this thread itself is
 * late: when this rank was stopped or starved, that time does not count against its
 * neighbours. */
static void tree_tick(transport *t, double now, double slept, double *beat)
{
	int due = now >= *beat;
	for (int i = 0; i < TREE_NEIGHBOURS; i++) {
		neighbour *n = &t->tree.near[i];
		char how[64];

		if (n->fd < 0)
			continue;
		if (slept > tree_interval(t))
			n->last_recv = now;
		if (due)
			neighbour_send(n, CTRL_HEARTBEAT, 0, 0, NULL);
		if (now - n->last_recv < t->o.timeout || transport_failed(t))
			continue;
		snprintf(how, sizeof how, "has not answered for %.3g s", t->o.timeout);
		neighbour_lost(t, n, GRADCOMP_ERR_TIMEOUT, how);
	}
	if (due)
		*beat = now + tree_interval(t);
}

void *tree_main(void *arg)
{
	transport *t = arg;
	struct pollfd p[1 + TREE_NEIGHBOURS + LISTENER_POLLS + PROBES_MAX];
	double beat = 0;
	for (;;) {
		int n, quit, fd[TREE_NEIGHBOURS];
		struct pollfd *probes;
		bool suspended;
		double now = clock_now(), due;
		eventfd_t events;

		pthread_mutex_lock(&t->lock);
		for (int i = 0; i < TREE_NEIGHBOURS; i++) {
			fd[i] = t->tree.near[i].fd;
			p[1 + i] = (struct pollfd){fd[i], (short)(POLLIN | (t->tree.near[i].unsent ? POLLOUT : 0)), 0};
		}
		quit = t->tree.quit;
		suspended = t->tree.suspended;
		pthread_mutex_unlock(&t->lock);
		if (quit)
			return NULL;
		p[0] = (struct pollfd){t->tree.wake_fd, POLLIN, 0};
		n = suspended ? 0 : listener_poll(&t->sockets.listener, p + 1 + TREE_NEIGHBOURS, now);
		due = suspended ? beat : listener_deadline(&t->sockets.listener);
		due = due < beat ? due : beat;
		probes = p + 1 + TREE_NEIGHBOURS + n;
		for (int i = 0; i < PROBES_MAX; i++)
			probes[i] = (struct pollfd){t->sockets.probe[i], POLLIN, 0};
		poll(p, (nfds_t)(1 + TREE_NEIGHBOURS + n + PROBES_MAX), due > now ? (int)((due - now) * 1e3) + 1 : 0);
		if (p[0].revents)
			eventfd_read(t->tree.wake_fd, &events);
		now = clock_now();
		pthread_mutex_lock(&t->lock);
		for (int i = 0; i < TREE_NEIGHBOURS; i++) {
			if (fd[i] < 0 || t->tree.near[i].fd != fd[i])
				continue;
			if (p[1 + i].revents & POLLOUT)
				neighbour_flush(&t->tree.near[i]);
			if (p[1 + i].revents & ~POLLOUT)
				neighbour_read(t, i);
		}
		tree_tick(t, now, now - due, &beat);
		pthread_mutex_unlock(&t->lock);
		for (int i = 0; i < PROBES_MAX; i++)
			if (probes[i].revents && !survey_swallow(t->sockets.probe[i])) {
				close(t->sockets.probe[i]);
				t->sockets.probe[i] = -1;
			}
		if (!suspended)
			listener_serve(&t->sockets.listener, p + 1 + TREE_NEIGHBOURS, n);
	}
}
