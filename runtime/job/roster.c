/* The rank that is asked: what it has promised and accepted, and the thread that answers. */
#define _GNU_SOURCE
#include "job/roster_internal.h"

#include "base/error.h"
#include "base/thread.h"
#include "transport/core/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* With the lock held: what was decided becomes the view. */
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
	m->record = NULL;
	m->heard = 0;
	pthread_cond_broadcast(&m->changed);
}

/* With the lock held, of a question in this rank's epoch. */
static void answer_in_epoch(roster *m, const roster_message *q, roster_message *a)
{
	if (q->type == ROSTER_PREPARE && m->transport)
		transport_fail(m->transport, GRADCOMP_ERR_PEER_LOST, -1,
		               q->text.bytes ? (const char *)q->text.p : "a rank was lost");
	m->heard = clock_now();
	if (!m->record) {
		a->type = ROSTER_NOT_YET;
	} else if (q->ballot < m->promised) {
		a->ballot = m->promised;
	} else if (q->type == ROSTER_PREPARE) {
		if (roster_blob_copy(&a->text, m->record, strlen(m->record)) ||
		    (m->accepted && roster_blob_copy(&a->value, m->accepted_value.p, m->accepted_value.bytes)))
			return;
		m->promised = q->ballot;
		a->ballot = m->accepted;
		a->type = ROSTER_PROMISE;
	} else {
		roster_blob copy;

		if (roster_blob_copy(&copy, q->value.p, q->value.bytes))
			return;
		free(m->accepted_value.p);
		m->accepted_value = copy;
		m->promised = m->accepted = q->ballot;
		a->type = ROSTER_ACCEPTED;
	}
}

void roster_answer(roster *m, const roster_message *q, roster_message *a)
{
	memset(a, 0, sizeof *a);
	a->type = ROSTER_REFUSED;
	a->from = (uint32_t)m->rank;
	pthread_mutex_lock(&m->lock);
	if (m->closed)
		goto out;
	/* What the others have decided meanwhile, first. */
	if (q->epoch > m->view.epoch)
		adopt(m, &q->view);
	if (q->type == ROSTER_COMMIT)
		adopt(m, &q->value);
	a->epoch = m->view.epoch;
	if (q->type == ROSTER_COMMIT) {
		a->type = ROSTER_ACCEPTED;
	} else if (q->epoch < m->view.epoch) {
		if (!roster_blob_copy(&a->view, m->decided.p, m->decided.bytes))
			a->type = ROSTER_AHEAD;
	} else if (q->epoch == m->view.epoch && roster_view_has(&m->view, (int)q->from) &&
	           (q->type == ROSTER_PREPARE || q->type == ROSTER_ACCEPT)) {
		answer_in_epoch(m, q, a);
	}
out:
	pthread_mutex_unlock(&m->lock);
}

static const char *hello_check(void *ctx, const pending_conn *p)
{
	const roster *m = ctx;

	if (memcmp(p->in, "GCS1", 4))
		return "it does not speak gradcomp";
	if (get32(p->in + 8) >= (uint32_t)m->n || get32(p->in + 12) != (uint32_t)m->rank || get32(p->in + 16) != (uint32_t)m->n)
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
	roster_message q, a;
	roster_blob in = {0}, out = {0};

	if (!pending_welcome(p) && !roster_receive(p->fd, &in, until) && !roster_message_read(&in, &q)) {
		if (q.from == get32(p->hello + 8)) {
			roster_answer(m, &q, &a);
			if (!roster_message_write(&a, &out))
				roster_send(p->fd, &out, until);
			roster_message_clear(&a);
		}
		roster_message_clear(&q);
	}
	free(in.p);
	free(out.p);
	pending_free(p);
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
			st = error_set(err, GRADCOMP_ERR_UNSUPPORTED,
			               "gradcomp.on_failure=shrink takes TCP, to agree on who is left: rank %d has no address "
			               "(transport.allow must have tcp)", r);
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
		st = error_set(err, GRADCOMP_ERR_NOMEM, "cannot start the thread that answers for this rank: %s", strerror(rc));
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
