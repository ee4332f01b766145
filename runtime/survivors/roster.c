/* The rank that is asked: what it has promised and accepted, and the thread that answers. */
#define _GNU_SOURCE
#include "survivors/roster_internal.h"

#include "base/error.h"
#include "base/thread.h"
#include "transport/wire/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* Called with the lock held: makes what was decided the view. */
static void adopt(roster *m, const roster_blob *bytes)
{
	roster_view v;
	roster_blob copy;
	if (roster_view_read(bytes, m->n, &v))
		return;
	if (v.epoch <= m->view.epoch || roster_blob_copy(&copy, bytes->p, bytes->bytes)) {
		roster_view_clear(&v);
		return;
	}
	roster_view_clear(&m->view);
	m->view = v;
	free(m->decided.p);
	m->decided = copy;
	free(m->accepted_value.p);
	m->accepted_value = (roster_blob){0};
	m->promised = m->accepted = 0;
	m->calling = false;
	m->heard = 0;
	pthread_cond_broadcast(&m->changed);
}

/* Called with the lock held, of a question in this rank's epoch. */
static void answer_in_epoch(roster *m, const roster_message *q, roster_message *tally)
{
	roster_message mine = {.type = ROSTER_TALLY};
	int me = roster_view_find(&m->view, m->rank);
	roster_blob copy, own = {0}; /* own: this rank, as a bitmap */
	if (q->type == ROSTER_PREPARE && m->transport)
		transport_fail(m->transport, GRADCOMP_ERR_PEER_LOST, -1,
		               q->text.bytes ? (const char *)q->text.p : "a rank was lost");
	m->heard = clock_now();
	if (roster_bit_set(&own, m->view.n, me))
		return;
	if (!m->calling) {
		mine.late = own;
	} else if (q->ballot < m->promised) {
		mine.promised = m->promised;
	} else if (q->type == ROSTER_PREPARE) {
		mine.ballot = m->accepted;
		mine.value = m->accepted_value;
		mine.set = own;
		m->promised = q->ballot;
	} else if (!roster_blob_copy(&copy, q->value.p, q->value.bytes)) {
		free(m->accepted_value.p);
		m->accepted_value = copy;
		m->promised = m->accepted = q->ballot;
		mine.set = own;
	}
	roster_tally_add(tally, &mine, &own);
	free(own.p);
}

void roster_answer(roster *m, const roster_message *q, roster_message *tally)
{
	pthread_mutex_lock(&m->lock);
	if (m->closed)
		goto out;
	/* A decision that the others have made meanwhile comes first. */
	if (q->epoch > m->view.epoch)
		adopt(m, &q->view);
	if (q->type == ROSTER_COMMIT)
		adopt(m, &q->value);
	else if (q->epoch < m->view.epoch)
		roster_tally_add(tally, &(roster_message){.view = m->decided}, &(roster_blob){0});
	else if (q->epoch == m->view.epoch && roster_view_find(&m->view, (int)q->from) >= 0 &&
	         roster_view_find(&m->view, m->rank) >= 0 && (q->type == ROSTER_PREPARE || q->type == ROSTER_ACCEPT))
		answer_in_epoch(m, q, tally);
out:
	pthread_mutex_unlock(&m->lock);
}

typedef struct relay {
	roster *m;
	int fd;
	double until;
	roster_message question;
	roster_view members; /* those of the question's epoch */
} relay;

/* Called with the lock held. Members of another epoch are not known here: then the one that asks does it itself. */
static bool relay_members(relay *r)
{
	roster *m = r->m;
	size_t n;
	if (r->question.epoch > m->view.epoch)
		adopt(m, &r->question.view);
	n = (size_t)m->view.n * sizeof(int);
	if (m->closed || m->relays >= ROSTER_RELAYS || r->question.epoch != m->view.epoch ||
	    r->question.set.bytes != ((size_t)m->view.n + 7) / 8 || !(r->members.ranks = malloc(n)))
		return false;
	r->members.n = m->view.n;
	r->members.epoch = m->view.epoch;
	memcpy(r->members.ranks, m->view.ranks, n);
	m->relays++;
	return true;
}

static void reply(int fd, roster_message *tally, double until)
{
	roster_blob out = {0};
	if (!roster_message_write(tally, &out))
		roster_send(fd, &out, until);
	free(out.p);
	roster_message_clear(tally);
}

static void relay_free(relay *r)
{
	roster_view_clear(&r->members);
	roster_message_clear(&r->question);
	free(r);
}

static void *relay_main(void *arg)
{
	relay *r = arg;
	roster *m = r->m;
	roster_message tally = {.type = ROSTER_TALLY, .from = (uint32_t)m->rank, .epoch = r->question.epoch};
	roster_blob set = r->question.set;
	int me = roster_view_find(&r->members, m->rank);
	double left = r->until - clock_now();
	r->question.set = (roster_blob){0};
	roster_answer(m, &r->question, &tally);
	r->question.from = (uint32_t)m->rank;
	if (me >= 0)
		set.p[me / 8] &= (unsigned char)~(1u << me % 8);
	/* The time that is left after this is for the way back. */
	roster_ask(m, &r->members, &set, &r->question, 0.9 * left, true, &tally);
	free(set.p);
	reply(r->fd, &tally, r->until);
	close(r->fd);
	relay_free(r);
	pthread_mutex_lock(&m->lock);
	m->relays--;
	pthread_cond_broadcast(&m->changed);
	pthread_mutex_unlock(&m->lock);
	return NULL;
}

/* Passes the question on, in a thread of its own. False: it does not. Takes over fd and *q, if it does. */
static bool relay_start(roster *m, int fd, roster_message *q)
{
	relay *r = calloc(1, sizeof *r);
	double budget = q->budget < 1000 * ROSTER_CALL_SECONDS ? q->budget * 1e-3 : ROSTER_CALL_SECONDS;
	pthread_t thread;
	bool mine, started;
	if (!r)
		return false;
	*r = (relay){.m = m, .fd = fd, .until = clock_now() + budget, .question = *q};
	pthread_mutex_lock(&m->lock);
	mine = relay_members(r);
	pthread_mutex_unlock(&m->lock);
	started = mine && !thread_start(&thread, relay_main, r);
	if (started) {
		pthread_detach(thread);
		*q = (roster_message){0};
		return true;
	}
	if (mine) {
		pthread_mutex_lock(&m->lock);
		m->relays--;
		pthread_mutex_unlock(&m->lock);
	}
	r->question = (roster_message){0};
	relay_free(r);
	return false;
}

static const char *hello_check(void *ctx, const pending_conn *p)
{
	const roster *m = ctx;
	if (memcmp(p->in, "GCS1", 4))
		return "it does not speak gradcomp";
	if (get32(p->in + 8) >= (uint32_t)m->n || get32(p->in + 12) != (uint32_t)m->rank ||
	    get32(p->in + 16) != (uint32_t)m->n)
		return "it wants another rank or job";
	return NULL;
}

static void hello_proof(void *ctx, handshake_role role, const pending_conn *p, unsigned char mac[SHA256_BYTES])
{
	const roster *m = ctx;
	handshake_mac(m->key, role, p->hello, p->nonce, mac);
}

static const char *serve(void *ctx, pending_conn *p)
{
	roster *m = ctx;
	double until = clock_now() + ROSTER_CALL_SECONDS;
	roster_message q = {0};
	roster_blob in = {0};
	if (listener_pending_welcome(p) || roster_receive(p->fd, &in, until) || roster_message_read(&in, &q) ||
	    q.from != get32(p->hello + 8)) {
		listener_pending_free(p);
	} else if (q.set.bytes && relay_start(m, p->fd, &q)) {
		p->fd = -1;
	} else {
		roster_message tally = {
			.type = q.set.bytes ? ROSTER_BUSY : ROSTER_TALLY, .from = (uint32_t)m->rank, .epoch = q.epoch};

		roster_answer(m, &q, &tally);
		reply(p->fd, &tally, until);
		listener_pending_free(p);
	}
	roster_message_clear(&q);
	free(in.p);
	return NULL;
}

static const listener_ops ops = {HELLO_BYTES, hello_check, hello_proof, serve};

static void *roster_main(void *arg)
{
	roster *m = arg;
	struct pollfd p[1 + LISTENER_POLLS];
	for (;;) {
		double now = clock_now(), due = listener_deadline(&m->listener);
		int n = listener_poll(&m->listener, p + 1, now), wait = -1;
		bool quit;

		p[0] = (struct pollfd){m->wake_fd, POLLIN, 0};
		if (due < 1e17)
			wait = due > now ? (int)((due - now) * 1e3) + 1 : 0;
		poll(p, (nfds_t)(1 + n), wait);
		pthread_mutex_lock(&m->lock);
		quit = m->quit;
		pthread_mutex_unlock(&m->lock);
		if (quit)
			return NULL;
		listener_serve(&m->listener, p + 1, n);
	}
}

gradcomp_status roster_listen(int *port, roster **out, gradcomp_error *err)
{
	roster *m = calloc(1, sizeof *m);
	uint16_t at;
	int fd;
	*out = NULL;
	if (!m)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for the list of ranks");
	pthread_mutex_init(&m->lock, NULL);
	thread_condition(&m->changed);
	listener_init(&m->listener, &ops, m, NULL);
	listener_close_in_forks(&m->listener);
	m->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	fd = address_listen("", &at);
	if (m->wake_fd < 0 || fd < 0) {
		gradcomp_status st = error_errno(err, GRADCOMP_ERR_IO, "gradcomp.on_failure=shrink: cannot listen");

		if (fd >= 0)
			close(fd);
		roster_close(m);
		return st;
	}
	listener_add(&m->listener, fd, false);
	*port = at;
	*out = m;
	return GRADCOMP_OK;
}

gradcomp_status roster_begin(roster *m, transport *t, int rank, int n, const char *const *endpoints, const int *ports,
                             const log_sink *log, gradcomp_error *err)
{
	endpoint_node *nodes = calloc((size_t)n, sizeof *nodes);
	const char **keys = calloc((size_t)n, sizeof *keys);
	gradcomp_status st = GRADCOMP_OK;
	int rc;
	m->rank = rank;
	m->n = n;
	m->transport = t;
	m->listener.log = log;
	transport_key(t, "gradcomp roster", NULL, 0, m->key);
	transport_key(t, "gradcomp epoch", NULL, 0, m->base);
	m->endpoints = calloc((size_t)n, sizeof *m->endpoints);
	m->node = calloc((size_t)n, sizeof *m->node);
	m->view = (roster_view){.n = n, .ranks = calloc((size_t)n, sizeof *m->view.ranks)};
	if (!nodes || !keys || !m->endpoints || !m->node || !m->view.ranks)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a list of %d ranks", n);
	for (int r = 0; !st && r < n; r++) {
		st = endpoint_read(endpoints[r], &m->endpoints[r], &nodes[r], err);
		if (!st && !m->endpoints[r].naddr)
			st = error_set(
				err, GRADCOMP_ERR_UNSUPPORTED,
				"gradcomp.on_failure=shrink takes TCP, to agree on who is left: rank %d has no address "
				"(transport.allow must have tcp)",
				r);
		for (int i = 0; !st && i < m->endpoints[r].naddr; i++)
			m->endpoints[r].addr[i].port = (uint16_t)ports[r];
		m->view.ranks[r] = r;
		keys[r] = nodes[r].key;
	}
	if (!st && endpoint_number_nodes(keys, n, m->node) < 0)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a list of %d ranks", n);
	for (int i = 0; !st && i < m->endpoints[rank].naddr; i++)
		m->own[m->nown++] = m->endpoints[rank].addr[i];
	rc = st ? 0 : thread_start(&m->thread, roster_main, m);
	if (rc)
		st = error_set(err, GRADCOMP_ERR_NOMEM, "cannot start the thread that answers for this rank: %s",
		               strerror(rc));
	m->running = !st;
	free(nodes);
	free(keys);
	return st;
}

void roster_watch(roster *m, transport *t)
{
	pthread_mutex_lock(&m->lock);
	m->transport = t;
	pthread_mutex_unlock(&m->lock);
}

void roster_secret(const roster *m, const roster_view *v, unsigned char secret[TRANSPORT_SECRET_BYTES])
{
	unsigned char info[8 + sizeof v->nonce];
	put64(info, v->epoch);
	memcpy(info + 8, v->nonce, sizeof v->nonce);
	secret_expand(m->base, "gradcomp epoch", info, sizeof info, secret);
}

const char *roster_host(const roster *m, int rank)
{
	return m->endpoints[rank].host;
}

void roster_stats(const roster *m, uint64_t *calls, uint64_t *bytes)
{
	*calls = atomic_load(&m->calls);
	*bytes = atomic_load(&m->bytes);
}

void roster_close(roster *m)
{
	if (!m)
		return;
	if (m->running) {
		pthread_mutex_lock(&m->lock);
		m->quit = true;
		pthread_mutex_unlock(&m->lock);
		eventfd_write(m->wake_fd, 1);
		pthread_join(m->thread, NULL);
		pthread_mutex_lock(&m->lock);
		while (m->relays)
			pthread_cond_wait(&m->changed, &m->lock);
		pthread_mutex_unlock(&m->lock);
	}
	listener_close(&m->listener);
	if (m->wake_fd >= 0)
		close(m->wake_fd);
	for (int r = 0; m->endpoints && r < m->n; r++)
		endpoint_clear(&m->endpoints[r]);
	free(m->endpoints);
	free(m->node);
	roster_view_clear(&m->view);
	free(m->decided.p);
	free(m->accepted_value.p);
	secret_wipe(m->key, sizeof m->key);
	secret_wipe(m->base, sizeof m->base);
	pthread_mutex_destroy(&m->lock);
	pthread_cond_destroy(&m->changed);
	free(m);
}
