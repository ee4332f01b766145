/* Coming in to the meeting place: connection, greeting, and what reads and writes. */
#include "guest.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define TICK_MS 100

static bool stopped(const gradcomp_guest *g)
{
	return g->o.stop && g->o.stop(g->o.ctx);
}

int guest_wait(const gradcomp_guest *g, int fd, short events, double until)
{
	struct pollfd p = {fd, events, 0};

	for (;;) {
		double left = (until - clock_now()) * 1e3;
		int n = poll(&p, 1, left < 0 ? 0 : left < TICK_MS ? (int)left + 1 : TICK_MS);

		if (n > 0)
			return 1;
		if (stopped(g))
			return -1;
		if (left <= 0)
			return 0;
	}
}

const char *guest_all(const gradcomp_guest *g, int fd, void *buf, size_t bytes, bool out, double until)
{
	unsigned char *p = buf;

	while (bytes) {
		ssize_t n = out ? send(fd, p, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, p, bytes, MSG_DONTWAIT);

		if (n > 0) {
			p += n;
			bytes -= (size_t)n;
		} else if (!n) {
			return "it closed the connection";
		} else if (errno == EAGAIN) {
			if (guest_wait(g, fd, out ? POLLOUT : POLLIN, until) <= 0)
				return "it does not answer";
		} else if (errno != EINTR) {
			return strerror(errno);
		}
	}
	return NULL;
}

static const char *greet(gradcomp_guest *g, int fd, double until, bool *stranger)
{
	unsigned char text[MEET_HELLO_BYTES], challenge[CHALLENGE_BYTES], mac[SECRET_BYTES],
		welcome[WELCOME_BYTES];
	meet_hello h = {(uint32_t)g->o.rank, (uint32_t)g->o.nranks, {0}};
	const char *why;

	if (secret_random(h.nonce, sizeof h.nonce, NULL))
		return "no random bytes";
	meet_hello_write(&h, text);
	why = guest_all(g, fd, text, sizeof text, true, until);
	if (!why)
		why = guest_all(g, fd, challenge, sizeof challenge, false, until);
	if (why)
		return why;
	meet_proof(&g->keys, ROLE_ACCEPT, text, challenge, mac);
	*stranger = !secret_equal(mac, challenge + NONCE_BYTES, sizeof mac);
	if (*stranger)
		return "who answers there does not have the step's token";
	meet_proof(&g->keys, ROLE_CONNECT, text, challenge, mac);
	why = guest_all(g, fd, mac, sizeof mac, true, until);
	return why ? why : guest_all(g, fd, welcome, sizeof welcome, false, until);
}

/* A connection to one address; NULL and g->fd, or what went wrong. */
static const char *attempt(gradcomp_guest *g, const address *a, double deadline, bool *stranger)
{
	struct sockaddr_storage sa;
	socklen_t bytes = address_sockaddr(a, &sa);
	double until = clock_now() + GUEST_ATTEMPT;
	int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), on = 1, code = 0;
	socklen_t code_bytes = sizeof code;
	const char *why = NULL;

	until = until < deadline ? until : deadline;
	address_text(&sa, g->place);
	if (fd < 0)
		return strerror(errno);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
	if (connect(fd, (struct sockaddr *)&sa, bytes) && errno != EINPROGRESS)
		why = strerror(errno);
	else if (guest_wait(g, fd, POLLOUT, until) <= 0)
		why = "it does not answer";
	else if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &code, &code_bytes) || code)
		why = strerror(code ? code : errno);
	if (!why)
		why = greet(g, fd, until, stranger);
	if (why)
		close(fd);
	else
		g->fd = fd;
	return why;
}

gradcomp_status guest_addresses(gradcomp_guest *g, const char *where, gradcomp_error *err)
{
	address peer[ADDRESS_MAX], own[ADDRESS_MAX];
	int order[ADDRESS_MAX], nown = 0;

	for (const char *p = where; *p && g->nat < ADDRESS_MAX; p += strspn(p, ",")) {
		size_t n = strcspn(p, ",");
		if (address_parse(p, n, &peer[g->nat++]))
			return error_set(err, GRADCOMP_ERR_INVALID, "the address of the meeting place is malformed");
		p += n;
	}
	if (!g->nat)
		return error_set(err, GRADCOMP_ERR_INVALID, "the meeting place has no address");
	(void)address_own("", own, &nown, NULL);
	/* On the node of srun itself every address is an own one: they come last, not never. */
	address_order(own, nown, 0, peer, g->nat, order);
	for (int i = 0; i < g->nat; i++)
		g->at[i] = peer[order[i]];
	return GRADCOMP_OK;
}

gradcomp_status guest_come(gradcomp_guest *g, double deadline, gradcomp_error *err)
{
	const char *why = "";
	bool stranger = false;
	double pause = 0.05;

	for (;;) {
		for (int i = 0; i < g->nat; i++) {
			why = attempt(g, &g->at[i], deadline, &stranger);
			if (!why)
				return GRADCOMP_OK;
			if (stopped(g))
				return error_set(err, GRADCOMP_ERR_STATE, "stopped");
		}
		/* A flood there may have pushed us out, and the place has just been opened. */
		if (clock_now() + pause > deadline)
			break;
		(void)poll(NULL, 0, (int)(pause * 1e3));
		pause = pause < 1 ? 2 * pause : pause;
	}
	return error_set(err, stranger ? GRADCOMP_ERR_AUTH : GRADCOMP_ERR_IO,
	                 "cannot reach the meeting place of the step at %s, beside srun: %s", g->place, why);
}
