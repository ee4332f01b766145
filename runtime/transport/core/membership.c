/* This rank as a member of the job: it joins the tree, and leaves with all ranks. */
#define _GNU_SOURCE
#include "transport/control/connect.h"
#include "transport/control/survey.h"
#include "transport/link/link_kind.h"

#include "base/error.h"
#include "base/thread.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static gradcomp_status transport_missing(const transport *t, gradcomp_error *err)
{
	char who[200];
	size_t used = 0;
	for (int i = 0; i < TREE_NEIGHBOURS; i++) {
		const neighbour *n = &t->tree.near[i];

		if (n->rank >= 0 && n->fd < 0 && used < sizeof who)
			used += (size_t)snprintf(who + used, sizeof who - used, "%srank %d on %s", used ? " and " : "",
			                         n->rank, transport_host(t, n->rank));
	}
	return error_set(err, GRADCOMP_ERR_TIMEOUT, "%s did not join the job within %.3g s", who, t->o.join_timeout);
}

static bool transport_complete(const transport *t)
{
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		if (t->tree.near[i].rank >= 0 && t->tree.near[i].fd < 0)
			return false;
	return true;
}

static int transport_sleep(transport *t, double until)
{
	struct timespec ts = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};
	return pthread_cond_timedwait(&t->tree.changed, &t->lock, &ts) != ETIMEDOUT;
}

static gradcomp_status transport_join(transport *t, double deadline, gradcomp_error *err)
{
	gradcomp_status st;
	int fd;
	if (t->rank) {
		hello h = {.kind = HELLO_CONTROL, .streams = 1, .to = (uint32_t)t->tree.near[TREE_PARENT].rank};

		st = connect_peer(t, &h, -1, deadline, &fd, err);
		if (st)
			return st;
		if (tree_attach(t, (int)h.to, fd, &h)) {
			close(fd);
			return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the connection to rank %u", h.to);
		}
	}
	pthread_mutex_lock(&t->lock);
	while (!transport_complete(t) && !transport_failed(t) && transport_sleep(t, deadline))
		;
	st = transport_failure(t, err);
	if (!st && !transport_complete(t))
		st = transport_missing(t, err);
	pthread_mutex_unlock(&t->lock);
	return st;
}

/* The lowest rank of each node measures the networks to the next node, and all hear what came of it. */
static gradcomp_status transport_survey(transport *t, double deadline, gradcomp_error *err)
{
	uint32_t rate[NETWORKS_MAX];
	gradcomp_status st;
	if (t->peers.networks.measured || !networks_unclear(&t->peers.networks))
		return GRADCOMP_OK;
	survey_measure(t, rate, deadline);
	pthread_mutex_lock(&t->lock);
	tree_rates(t, rate);
	while (!t->peers.networks.measured && !transport_failed(t) && transport_sleep(t, deadline))
		;
	st = transport_failure(t, err);
	if (!st && !t->peers.networks.measured)
		st = error_set(err, GRADCOMP_ERR_TIMEOUT,
		               "not all ranks said within %.3g s how fast their networks are", t->o.join_timeout);
	pthread_mutex_unlock(&t->lock);
	/* An address that the control tree has reached is not yet the one that messages shall take. */
	for (int r = 0; !st && r < t->nranks; r++)
		atomic_store_explicit(&t->peers.endpoints[r].good, -1, memory_order_relaxed);
	return st;
}

gradcomp_status transport_start(transport *t, const char *const *endpoints,
                                const unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err)
{
	double deadline = clock_now() + t->o.join_timeout;
	gradcomp_status st = endpoints ? peer_table_read(t, endpoints, err) : GRADCOMP_OK;
	gradcomp_error why;
	int rc;
	if (st)
		return st;
	if (endpoints)
		links_met(t);
	memcpy(t->secret, secret, TRANSPORT_SECRET_BYTES);
	if (t->nranks == 1)
		return GRADCOMP_OK;
	for (int r = 0; r < t->nranks; r++)
		if (r != t->rank && !link_use_to(t, r))
			return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			                 "no transport connects rank %d on %s to rank %d on %s: transport.allow=%s",
			                 t->rank, transport_host(t, t->rank), r, transport_host(t, r), t->allow);
	rc = thread_start(&t->tree.thread, tree_main, t);
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOMEM, "cannot start the control thread: %s", strerror(rc));
	t->tree.running = true;
	forked_watch(t);
	st = transport_join(t, deadline, &why);
	if (!st)
		st = transport_survey(t, deadline, &why);
	if (!st) {
		survey_log(t);
		return GRADCOMP_OK;
	}
	/* The ranks that have joined learn why this one gives up. */
	transport_fail(t, st, -1, why.text);
	return error_set(err, st, "%s", why.text);
}

void transport_suspend(transport *t)
{
	pthread_mutex_lock(&t->lock);
	t->tree.suspended = true;
	pthread_mutex_unlock(&t->lock);
	tree_wake(t);
}

/* Goes through the leave barrier. */
gradcomp_status transport_leave(transport *t, gradcomp_error *err)
{
	double until = clock_now() + t->o.wait_timeout;
	gradcomp_status st;
	if (!t->tree.running)
		return transport_failure(t, err);
	pthread_mutex_lock(&t->lock);
	t->tree.leaving = true;
	tree_leave(t);
	/* The control thread sends what the socket did not take at once. */
	tree_wake(t);
	while (!t->tree.left && !transport_failed(t) && transport_sleep(t, until))
		;
	if (!t->tree.left) {
		char text[CULPRIT_TEXT];

		snprintf(text, sizeof text, "rank %d on %s has waited %.3g s for the other ranks to leave the job",
		         t->rank, transport_host(t, t->rank), t->o.wait_timeout);
		tree_fail(t, GRADCOMP_ERR_TIMEOUT, -1, text);
	}
	st = transport_failure(t, err);
	pthread_mutex_unlock(&t->lock);
	return st;
}

void transport_await_tallies(transport *t, double seconds)
{
	double until = clock_now() + seconds;
	pthread_mutex_lock(&t->lock);
	while (t->tree.told_last < t->nranks && !transport_failed(t) && transport_sleep(t, until))
		;
	pthread_mutex_unlock(&t->lock);
}

static void transport_quit(transport *t)
{
	pthread_mutex_lock(&t->lock);
	t->tree.left = true;
	tree_flush(t, 1);
	t->tree.quit = true;
	pthread_mutex_unlock(&t->lock);
	tree_wake(t);
	pthread_join(t->tree.thread, NULL);
}

gradcomp_status transport_stop(transport *t, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;
	if (!t)
		return GRADCOMP_OK;
	forked_forget(t);
	if (t->tree.running) {
		st = transport_leave(t, err);
		transport_quit(t);
	}
	transport_release(t);
	return st;
}
