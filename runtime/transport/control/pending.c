/* Connections that have not proved anything yet: a bounded number of places, who
 * loses one in a flood, and the accepting side of the greeting. */
#define _GNU_SOURCE
#include "transport/core/transport_internal.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define STAGE_HELLO 0
#define STAGE_PROOF 1
#define SEND_TRIES 16
#define LOG_LINES 5 /* of strangers, in LOG_SECONDS */
#define LOG_SECONDS 10.0

void pending_free(pending_conn *s)
{
	if (s->fd >= 0)
		close(s->fd);
	if (s->passed >= 0)
		close(s->passed);
	s->fd = s->passed = -1;
}

void pending_log_hidden(transport *t)
{
	if (t->listener.log_hidden)
		log_line(t->o.log, GRADCOMP_LOG_WARN, "dropped %u more strangers' connections", t->listener.log_hidden);
	t->listener.log_lines = t->listener.log_hidden = 0;
}

/* Says why a connection was dropped, but not so often that a flood of them
 * fills the log. */
void pending_drop(transport *t, pending_conn *s, const char *why)
{
	listener *d = &t->listener;
	double now = clock_now();

	if (why && now >= d->log_window) {
		pending_log_hidden(t);
		d->log_window = now + LOG_SECONDS;
	}
	if (why && d->log_lines++ < LOG_LINES) {
		char from[ADDRESS_TEXT];

		address_text(&s->from, from);
		log_line(t->o.log, GRADCOMP_LOG_WARN, "dropped a connection from %s: %s", from, why);
	} else if (why) {
		d->log_hidden++;
	}
	pending_free(s);
}

/* A free place; when there is none, one of those who crowd loses its own. */
pending_conn *pending_slot(transport *t)
{
	const struct sockaddr_storage *from[PENDING_MAX];
	pending_conn *all = t->listener.pending, *worst;
	uint64_t arrival[PENDING_MAX];

	for (int i = 0; i < PENDING_MAX; i++) {
		if (all[i].fd < 0)
			return &all[i];
		from[i] = &all[i].from;
		arrival[i] = all[i].order;
	}
	worst = &all[address_most_crowded(from, arrival, PENDING_MAX)];
	pending_drop(t, worst, "too many connections wait for their proof");
	return worst;
}

/* Reads into s->in; the descriptor that comes with the proof of a local peer is
 * kept. Returns 1 when `want` bytes are there, 0 for not yet, -1 for gone. */
static int pending_read(pending_conn *s, unsigned want)
{
	union {
		char room[CMSG_SPACE(sizeof(int))];
		struct cmsghdr align;
	} control;
	struct iovec iov = {s->in + s->have, want - s->have};
	struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
	struct cmsghdr *c;
	ssize_t n;

	if (s->local && s->stage == STAGE_PROOF) {
		m.msg_control = control.room;
		m.msg_controllen = sizeof control.room;
	}
	n = recvmsg(s->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	if (n < 0)
		return errno == EAGAIN || errno == EINTR ? 0 : -1;
	c = m.msg_controllen ? CMSG_FIRSTHDR(&m) : NULL;
	/* There is room for more than one, by alignment; only the last is kept. */
	for (size_t at = 0; c && c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS &&
	                    c->cmsg_len >= CMSG_LEN(at + sizeof(int)); at += sizeof(int)) {
		if (s->passed >= 0)
			close(s->passed);
		memcpy(&s->passed, CMSG_DATA(c) + at, sizeof(int));
	}
	if (!n)
		return -1;
	s->have += (unsigned)n;
	return s->have == want;
}

/* A fresh socket's buffer takes these few bytes, or something is wrong. */
static int pending_send(int fd, const unsigned char *buf, size_t bytes)
{
	for (int tries = 0; bytes && tries < SEND_TRIES; tries++) {
		ssize_t n = send(fd, buf, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n < 0 && errno != EINTR && errno != EAGAIN)
			return -1;
		buf += n > 0 ? n : 0;
		bytes -= n > 0 ? (size_t)n : 0;
	}
	return bytes ? -1 : 0;
}

/* NULL, or why this HELLO is not for us. */
static const char *pending_hello(transport *t, pending_conn *s)
{
	unsigned char challenge[CHALLENGE_BYTES];
	const char *why;
	hello h;

	why = hello_read(s->in, &h);
	if (why)
		return why;
	if (h.nranks != (uint32_t)t->nranks || h.to != (uint32_t)t->rank)
		return "it looks for another rank or job";
	if ((h.kind == HELLO_SHM) != s->local && h.kind != HELLO_CONTROL)
		return "its greeting is malformed";
	if (!record_crypto_fits(s->local ? FRAMES_NONE : t->o.frames, h.frames))
		return "it has another security.frames, or a cipher that this CPU has not";
	if (secret_random(s->nonce, NONCE_BYTES, NULL))
		return "no random bytes";
	memcpy(s->hello, s->in, HELLO_BYTES);
	memcpy(challenge, s->nonce, NONCE_BYTES);
	handshake_mac(t->secret, ROLE_ACCEPT, s->hello, s->nonce, challenge + NONCE_BYTES);
	if (pending_send(s->fd, challenge, sizeof challenge))
		return "it does not listen";
	s->stage = STAGE_PROOF;
	s->have = 0;
	return NULL;
}

static const char *pending_proof(transport *t, pending_conn *s)
{
	unsigned char mac[SHA256_BYTES];
	hello h;
	int fd = s->fd, passed = s->passed;

	handshake_mac(t->secret, ROLE_CONNECT, s->hello, s->nonce, mac);
	if (!secret_equal(mac, s->in, sizeof mac))
		return "it does not have the job's secret";
	hello_read(s->hello, &h);
	memcpy(h.answer, s->nonce, NONCE_BYTES);
	if ((h.kind == HELLO_SHM) != (passed >= 0))
		return "its greeting is malformed";
	/* From here on it is a rank of this job. The welcome goes out before the
	 * hand-over: nothing may precede it on the wire. */
	if (pending_send(fd, handshake_welcome, WELCOME_BYTES))
		return "it does not listen";
	s->fd = s->passed = -1;
	if (h.kind == HELLO_CONTROL ? !tree_attach(t, (int)h.from, fd, &h) : !channel_backlog(t, &h, fd, passed))
		return NULL;
	s->fd = fd;
	s->passed = passed;
	return "it is connected already, or too many connections wait to be used";
}

void pending_serve(transport *t, pending_conn *s)
{
	const char *why;
	int got = pending_read(s, s->stage == STAGE_HELLO ? HELLO_BYTES : PROOF_BYTES);

	if (got < 0) {
		/* A connection that came and went without a word is a port scan or a
		 * peer that tried another address first. */
		pending_drop(t, s, s->have || s->stage ? "it went away before its proof" : NULL);
		return;
	}
	if (!got)
		return;
	why = s->stage == STAGE_HELLO ? pending_hello(t, s) : pending_proof(t, s);
	if (why)
		pending_drop(t, s, why);
}
