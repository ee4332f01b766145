#define _GNU_SOURCE
#include "state.h"

#include "error.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

double clock_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

gradcomp_status transport_secret(unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err)
{
	return handshake_random(secret, TRANSPORT_SECRET_BYTES, err);
}

static int transport_allows(const char *list, const char *name)
{
	size_t n = strlen(name);

	for (const char *p = list; (p = strstr(p, name)); p += n)
		if ((p == list || strchr(", ", p[-1])) && (!p[n] || strchr(", ", p[n])))
			return 1;
	return 0;
}

static void transport_release(transport *t)
{
	door_close(t);
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		if (t->tree[i].fd >= 0)
			close(t->tree[i].fd);
	while (t->parked) {
		parked *p = t->parked;

		t->parked = p->next;
		close(p->fd);
		if (p->passed >= 0)
			close(p->passed);
		free(p);
	}
	if (t->wake_fd >= 0)
		close(t->wake_fd);
	if (t->failed_fd >= 0)
		close(t->failed_fd);
	for (int r = 0; t->cards && r < t->nranks; r++)
		card_clear(&t->cards[r]);
	pthread_mutex_destroy(&t->lock);
	pthread_cond_destroy(&t->changed);
	free(t->cards);
	free(t->node);
	free(t->interface);
	free(t->allow);
	explicit_bzero(t->secret, sizeof t->secret);
	free(t);
}

static gradcomp_status transport_check(const transport_options *o, gradcomp_error *err)
{
	if (o->nranks < 1 || o->rank < 0 || o->rank >= o->nranks)
		return error_set(err, GRADCOMP_ERR_INVALID, "rank %d of %d is no rank", o->rank, o->nranks);
	if (!(o->timeout > 0) || !(o->wait_timeout > 0))
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "transport.timeout=%g and transport.wait_timeout=%g must be more than 0 seconds",
		                 o->timeout, o->wait_timeout);
	if (o->streams < 1 || o->streams > STREAMS_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "transport.streams=%d is not within 1..%d", o->streams,
		                 STREAMS_MAX);
	if (o->chunk < PART_MIN || o->chunk > PART_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "transport.chunk=%zu is not within %u..%u bytes", o->chunk,
		                 PART_MIN, PART_MAX);
	return GRADCOMP_OK;
}

gradcomp_status transport_listen(const transport_options *o, transport **out, gradcomp_error *err)
{
	gradcomp_status st = transport_check(o, err);
	char unix_name[CARD_UNIX];
	size_t unix_bytes = 0;
	card_node node;
	transport *t;

	*out = NULL;
	if (st)
		return st;
	t = calloc(1, sizeof *t);
	if (!t)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the transport");
	t->o = *o;
	t->o.chunk &= ~(size_t)63;
	t->rank = o->rank;
	t->nranks = o->nranks;
	t->wake_fd = t->failed_fd = -1;
	pthread_mutex_init(&t->lock, NULL);
	pthread_condattr_t attr;
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&t->changed, &attr);
	pthread_condattr_destroy(&attr);
	for (int i = 0; i < TREE_NEIGHBOURS; i++) {
		int r = i == TREE_PARENT ? (t->rank ? (t->rank - 1) / 2 : -1) : 2 * t->rank + i;

		t->tree[i].rank = r < t->nranks ? r : -1;
		t->tree[i].fd = -1;
	}
	t->interface = strdup(o->interface ? o->interface : "");
	t->allow = strdup(o->allow && *o->allow ? o->allow : "shm,tcp");
	t->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	t->failed_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (!t->interface || !t->allow || t->wake_fd < 0 || t->failed_fd < 0) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory or descriptors for the transport");
		goto fail;
	}
	t->o.interface = t->interface;
	t->o.allow = t->allow;
	t->allow_shm = transport_allows(t->allow, "shm");
	t->allow_tcp = transport_allows(t->allow, "tcp");
	if (!t->allow_shm && !t->allow_tcp) {
		st = error_set(err, GRADCOMP_ERR_INVALID, "transport.allow=%s names no transport: shm, tcp or shm,tcp",
		               t->allow);
		goto fail;
	}
	st = handshake_random(t->cookie, sizeof t->cookie, err);
	if (!st && t->nranks > 1)
		st = door_open(t, unix_name, &unix_bytes, err);
	card_this_node(&node);
	if (!st)
		st = card_write(&node, unix_name, unix_bytes, t->own, t->nranks > 1 ? t->nown : 0, t->card,
		                sizeof t->card, err);
	if (st)
		goto fail;
	*out = t;
	return GRADCOMP_OK;
fail:
	transport_release(t);
	return st;
}

const char *transport_card(const transport *t)
{
	return t->card;
}

/* More ranks on this node than CPUs they may run on? Then a rank that spins
 * keeps the one it waits for from running. */
static void transport_crowd(transport *t, const card_node *nodes, const char **lists)
{
	int here = 0, cpus;

	for (int r = 0; r < t->nranks; r++)
		if (t->node[r] == t->node[t->rank])
			lists[here++] = nodes[r].cpus;
	cpus = card_count_cpus(lists, here);
	t->crowded = here > (cpus ? cpus : (int)sysconf(_SC_NPROCESSORS_ONLN));
}

static gradcomp_status transport_read_cards(transport *t, const char *const *texts, gradcomp_error *err)
{
	size_t n = (size_t)t->nranks;
	card_node *nodes = calloc(n, sizeof *nodes);
	const char **keys = calloc(n, sizeof *keys);
	gradcomp_status st = GRADCOMP_OK;
	gradcomp_error why;

	t->cards = calloc(n, sizeof *t->cards);
	t->node = calloc(n, sizeof *t->node);
	if (!nodes || !keys || !t->cards || !t->node) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the cards of %d ranks", t->nranks);
		goto out;
	}
	for (int r = 0; r < t->nranks; r++) {
		st = card_read(texts[r], &t->cards[r], &nodes[r], &why);
		if (st) {
			error_set(err, st, "rank %d: %s", r, why.text);
			goto out;
		}
		keys[r] = nodes[r].key;
	}
	t->nnodes = card_number_nodes(keys, t->nranks, t->node);
	if (t->nnodes < 0) {
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the cards of %d ranks", t->nranks);
		goto out;
	}
	transport_crowd(t, nodes, keys);
out:
	free(nodes);
	free(keys);
	return st;
}

static gradcomp_status transport_missing(const transport *t, gradcomp_error *err)
{
	char who[200];
	size_t used = 0;

	for (int i = 0; i < TREE_NEIGHBOURS; i++) {
		const neighbour *n = &t->tree[i];

		if (n->rank >= 0 && n->fd < 0 && used < sizeof who)
			used += (size_t)snprintf(who + used, sizeof who - used, "%srank %d on %s", used ? " and " : "",
			                         n->rank, transport_host(t, n->rank));
	}
	return error_set(err, GRADCOMP_ERR_TIMEOUT, "%s did not join the job within %.3g s", who, t->o.timeout);
}

static int transport_complete(const transport *t)
{
	for (int i = 0; i < TREE_NEIGHBOURS; i++)
		if (t->tree[i].rank >= 0 && t->tree[i].fd < 0)
			return 0;
	return 1;
}

static int transport_sleep(transport *t, double until)
{
	struct timespec ts = {(time_t)until, (long)((until - (double)(time_t)until) * 1e9)};

	return pthread_cond_timedwait(&t->changed, &t->lock, &ts) != ETIMEDOUT;
}

static gradcomp_status transport_join(transport *t, double deadline, gradcomp_error *err)
{
	gradcomp_status st;
	int fd;

	if (t->rank) {
		hello h = {.kind = HELLO_CONTROL, .streams = 1, .to = (uint32_t)t->tree[TREE_PARENT].rank};

		st = connect_peer(t, &h, -1, deadline, &fd, err);
		if (st)
			return st;
		tree_attach(t, (int)h.to, fd);
	}
	pthread_mutex_lock(&t->lock);
	while (!transport_complete(t) && !atomic_load(&t->failed) && transport_sleep(t, deadline))
		;
	st = transport_failure(t, err);
	if (!st && !transport_complete(t))
		st = transport_missing(t, err);
	pthread_mutex_unlock(&t->lock);
	return st;
}

gradcomp_status transport_start(transport *t, const char *const *cards,
                                const unsigned char secret[TRANSPORT_SECRET_BYTES], gradcomp_error *err)
{
	double deadline = clock_now() + t->o.timeout;
	gradcomp_status st = transport_read_cards(t, cards, err);
	gradcomp_error why;
	sigset_t all, old;
	int rc;

	if (st)
		return st;
	memcpy(t->secret, secret, sizeof t->secret);
	if (t->nranks == 1)
		return GRADCOMP_OK;
	for (int r = 0; r < t->nranks; r++)
		if (r != t->rank && connect_kind(t, r) < 0)
			return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			                 "no transport leads from rank %d on %s to rank %d on %s: transport.allow=%s",
			                 t->rank, transport_host(t, t->rank), r, transport_host(t, r), t->allow);
	/* Signals are the application's. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&t->thread, NULL, tree_main, t);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (rc)
		return error_set(err, GRADCOMP_ERR_NOMEM, "cannot start the control thread: %s", strerror(rc));
	t->running = 1;
	forked_watch(t);
	st = transport_join(t, deadline, &why);
	if (!st)
		return GRADCOMP_OK;
	/* Who did come learns why this rank gives up. */
	transport_fail(t, st, -1, why.text);
	return error_set(err, st, "%s", why.text);
}

/* The leave barrier. */
static gradcomp_status transport_leave(transport *t, gradcomp_error *err)
{
	double until = clock_now() + t->o.wait_timeout;
	gradcomp_status st;

	pthread_mutex_lock(&t->lock);
	t->leaving = 1;
	tree_leave(t);
	while (!t->left && !atomic_load(&t->failed) && transport_sleep(t, until))
		;
	if (!t->left) {
		char text[CULPRIT_TEXT];

		snprintf(text, sizeof text, "rank %d on %s has waited %.3g s for the other ranks to leave the job",
		         t->rank, transport_host(t, t->rank), t->o.wait_timeout);
		tree_fail(t, GRADCOMP_ERR_TIMEOUT, -1, text);
	}
	st = transport_failure(t, err);
	t->left = 1;
	tree_flush(t, 1);
	t->quit = 1;
	pthread_mutex_unlock(&t->lock);
	tree_wake(t);
	pthread_join(t->thread, NULL);
	return st;
}

gradcomp_status transport_stop(transport *t, gradcomp_error *err)
{
	gradcomp_status st = GRADCOMP_OK;

	if (!t)
		return GRADCOMP_OK;
	forked_forget(t);
	if (t->running)
		st = transport_leave(t, err);
	transport_release(t);
	return st;
}

const char *transport_host(const transport *t, int rank)
{
	return t->cards && rank >= 0 && rank < t->nranks && t->cards[rank].host ? t->cards[rank].host : "?";
}

const int32_t *transport_nodes(const transport *t, int *nnodes)
{
	*nnodes = t->nnodes;
	return t->node;
}

const char *transport_kind(const transport *t, int rank)
{
	if (rank == t->rank)
		return "self";
	return connect_kind(t, rank) == KIND_SHM ? "shm" : "tcp";
}

int transport_stats(const transport *t, transport_counts out[4])
{
	static const char *const name[] = {"shm", "tcp"};
	int n = 0;

	for (int k = 0; k < 2; k++)
		if (atomic_load(&t->counts[k].pairs))
			out[n++] = (transport_counts){name[k], atomic_load(&t->counts[k].pairs),
			                              atomic_load(&t->counts[k].sent),
			                              atomic_load(&t->counts[k].received)};
	return n;
}
