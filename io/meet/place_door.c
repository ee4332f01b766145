/* Strangers at the meeting place: a bounded number of them for a few seconds each, as in
 * runtime/transport/stranger.c, until they have proved the token. */
#include "place.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STRANGER_SECONDS 3.0
#define ACCEPT_BATCH 64

void place_forget(stranger *s)
{
	if (s->fd >= 0)
		close(s->fd);
	s->fd = -1;
}

/* A free place, or that of one of those who crowd. */
static stranger *place_for(gradcomp_meet *m)
{
	const struct sockaddr_storage *from[STRANGERS];
	uint64_t arrival[STRANGERS];

	for (int i = 0; i < STRANGERS; i++) {
		if (m->strangers[i].fd < 0)
			return &m->strangers[i];
		from[i] = &m->strangers[i].from;
		arrival[i] = m->strangers[i].order;
	}
	stranger *worst = &m->strangers[address_crowd(from, arrival, STRANGERS)];
	place_forget(worst);
	return worst;
}

void place_accept_some(gradcomp_meet *m)
{
	for (int i = 0; i < ACCEPT_BATCH; i++) {
		struct sockaddr_storage from = {0};
		socklen_t bytes = sizeof from;
		int on = 1, fd = accept4(m->door, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

		if (fd < 0) {
			if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS)
				m->shut_until = clock_now() + 0.2;
			return;
		}
		stranger *s = place_for(m);
		*s = (stranger){.fd = fd, .from = from, .order = m->arrivals++, .deadline = clock_now() + STRANGER_SECONDS};
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
		setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	}
}

/* It has proved the token and takes its seat, if that is free. */
static bool take_seat(gradcomp_meet *m, stranger *s)
{
	seat *to = &m->seats[get32(s->hello + 4)];
	unsigned char *in = to->fd < 0 && !to->gone ? malloc(MEET_ENTRY_MAX) : NULL;

	if (!in || send(s->fd, handshake_welcome, WELCOME_BYTES, MSG_NOSIGNAL | MSG_DONTWAIT) != WELCOME_BYTES) {
		free(in);
		return false;
	}
	*to = (seat){.fd = s->fd, .in = in};
	s->fd = -1;
	return true;
}

/* False: it is no guest. */
static bool hear(gradcomp_meet *m, stranger *s)
{
	size_t want = s->greeted ? SECRET_BYTES : MEET_HELLO_BYTES;
	ssize_t n = recv(s->fd, s->in + s->have, want - s->have, MSG_DONTWAIT);
	unsigned char answer[CHALLENGE_BYTES], mac[SECRET_BYTES];
	meet_hello h;

	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return true;
	if (n <= 0)
		return false;
	s->have += (size_t)n;
	if (s->have < want)
		return true;
	if (s->greeted) {
		meet_proof(&m->keys, ROLE_CONNECT, s->hello, s->nonce, mac);
		return secret_equal(mac, s->in, sizeof mac) && take_seat(m, s);
	}
	if (meet_hello_read(s->in, &h) || h.nranks != (uint32_t)m->nranks || secret_random(s->nonce, NONCE_BYTES, NULL))
		return false;
	memcpy(s->hello, s->in, MEET_HELLO_BYTES);
	memcpy(answer, s->nonce, NONCE_BYTES);
	meet_proof(&m->keys, ROLE_ACCEPT, s->hello, s->nonce, answer + NONCE_BYTES);
	s->greeted = true;
	s->have = 0;
	/* A fresh socket's buffer takes these few bytes, or something is wrong. */
	return send(s->fd, answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == (ssize_t)sizeof answer;
}

void place_serve_strangers(gradcomp_meet *m, const struct pollfd *p)
{
	double t = clock_now();

	for (int i = 0; i < STRANGERS; i++) {
		stranger *s = &m->strangers[i];
		if (s->fd >= 0 && ((p[i].revents && !hear(m, s)) || t >= s->deadline))
			place_forget(s);
	}
}
