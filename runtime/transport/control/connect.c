#define _GNU_SOURCE
#include "transport/control/connect.h"

#include "transport/core/transport_internal.h"

#include "base/error.h"
#include "base/fd_pass.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/un.h>
#include <unistd.h>

#define ATTEMPT_SECONDS 3.0
/* From one address to the next, while none has answered: those that lead nowhere mostly say nothing. */
#define RACE_SECONDS 0.03
#define RACE_MAX (2 * ADDRESS_MAX)

static const char no_descriptor[] = "no descriptor is left";
static const char channel_gone[] = "it has closed its end of the channel";

/* Sleeps until fd has `events`, until `until`, or until the job has failed. 1, 0 or -1.
 * When this thread got no processor for so long that `until` has passed, what has come meanwhile counts. */
static int connect_wait(transport *t, int fd, short events, double until)
{
	struct pollfd p[2] = {{fd, events, 0}, {t->failure.fd, POLLIN, 0}};
	for (;;) {
		double left = until - clock_now();
		int n = poll(p, 2, left > 0 ? (int)(left * 1e3) + 1 : 0);

		if (n < 0 && errno != EINTR)
			return 0;
		if (n > 0)
			return p[1].revents ? -1 : 1;
		if (left <= 0)
			return 0;
	}
}

/* Reads or writes all of it; NULL, or what went wrong. */
static const char *connect_io(transport *t, int fd, unsigned char *buf, size_t bytes, int writing, double until)
{
	while (bytes) {
		ssize_t n = writing ? send(fd, buf, bytes, MSG_NOSIGNAL | MSG_DONTWAIT)
		                    : recv(fd, buf, bytes, MSG_DONTWAIT);

		if (n > 0) {
			buf += n;
			bytes -= (size_t)n;
		} else if (!n) {
			return "it closed the connection";
		} else if (errno == EAGAIN) {
			if (connect_wait(t, fd, writing ? POLLOUT : POLLIN, until) <= 0)
				return "it does not answer";
		} else if (errno != EINTR) {
			return strerror(errno);
		}
	}
	return NULL;
}

static const char *connect_proof(transport *t, int fd, unsigned char proof[PROOF_BYTES], int passed, double until)
{
	ssize_t n;
	if (passed < 0)
		return connect_io(t, fd, proof, PROOF_BYTES, 1, until);
	/* The descriptor goes with the first byte, even if the others are sent later. */
	while ((n = fd_pass(fd, proof, PROOF_BYTES, passed)) < 0)
		if (errno != EINTR && (errno != EAGAIN || connect_wait(t, fd, POLLOUT, until) <= 0))
			return "cannot pass the shared memory";
	return connect_io(t, fd, proof + n, PROOF_BYTES - (size_t)n, 1, until);
}

/* Now, and as long as an attempt may take; at most until `deadline`. */
static double attempt_end(double deadline)
{
	double until = clock_now() + ATTEMPT_SECONDS;
	return until < deadline ? until : deadline;
}

static const char *connect_handshake(transport *t, int fd, hello *h, int passed, double deadline)
{
	unsigned char text[HELLO_BYTES], challenge[CHALLENGE_BYTES], mac[SHA256_BYTES], welcome[WELCOME_BYTES];
	double until = attempt_end(deadline);
	const char *why;
	/* A nonce per attempt: no proof is valid twice. */
	if (secret_random(h->nonce, NONCE_BYTES, NULL))
		return "no random bytes";
	handshake_write(h, text);
	why = connect_io(t, fd, text, sizeof text, 1, until);
	if (!why)
		why = connect_io(t, fd, challenge, sizeof challenge, 0, until);
	if (why)
		return why;
	memcpy(h->answer, challenge, NONCE_BYTES);
	handshake_mac(t->secret, ROLE_ACCEPT, text, challenge, mac);
	if (!secret_equal(mac, challenge + NONCE_BYTES, sizeof mac))
		return "the process that answers does not have the job's secret";
	handshake_mac(t->secret, ROLE_CONNECT, text, challenge, mac);
	why = connect_proof(t, fd, mac, passed, attempt_end(deadline));
	/* After the proof the other side may use the connection at any moment. Closing
	 * it now would look like a death. */
	if (!why)
		why = connect_io(t, fd, welcome, sizeof welcome, 0, deadline);
	if (!why && !memcmp(welcome, handshake_gone, WELCOME_BYTES))
		return channel_gone;
	if (!why && memcmp(welcome, handshake_welcome, WELCOME_BYTES))
		why = "it does not follow the protocol";
	return why;
}

int connect_begin(const address *a)
{
	struct sockaddr_storage sa;
	socklen_t bytes = address_sockaddr(a, &sa);
	int error, fd = socket(sa.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || !connect(fd, (struct sockaddr *)&sa, bytes) || errno == EINPROGRESS || errno == EINTR)
		return fd;
	error = errno;
	close(fd);
	errno = error;
	return -1;
}

const char *connect_finish(transport *t, int fd, hello *h, double deadline)
{
	int on = 1, error = 0;
	socklen_t bytes = sizeof error;
	if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &bytes) || error)
		return strerror(error ? error : errno);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	return connect_handshake(t, fd, h, -1, deadline);
}

/* Connects to the peer's socket on this machine. */
static const char *connect_local(transport *t, const endpoint *c, hello *h, int passed, double deadline, int *out)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	const char *why = NULL;
	struct ucred cred;
	socklen_t len = sizeof cred;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0)
		return errno == EMFILE ? no_descriptor : strerror(errno);
	memcpy(un.sun_path + 1, c->unix_name, c->unix_bytes);
	if (connect(fd, (struct sockaddr *)&un,
	            (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + c->unix_bytes)) &&
	    errno != EINPROGRESS && errno != EINTR)
		why = strerror(errno);
	else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid())
		why = "the process that answers belongs to another user";
	else
		why = connect_handshake(t, fd, h, passed, deadline);
	if (why)
		close(fd);
	else
		*out = fd;
	return why;
}

/* An address of the peer that is tried. */
typedef struct racer {
	address a;
	int index; /* among the peer's */
	int fd;    /* -1: not begun, or lost */
} racer;

/* Lines up the addresses of a rank; what worked before goes first. A link-local address may be reached over any of
 * this rank's interfaces. */
static int race_line_up(const transport *t, endpoint *c, uint32_t to, racer line[RACE_MAX])
{
	int order[ADDRESS_MAX], good = atomic_load_explicit(&c->good, memory_order_relaxed), n = 0;
	network_address_order(&t->peers.networks, t->sockets.own, t->sockets.nown,
	                      t->peers.node[to] == t->peers.node[t->rank], c->addr, c->naddr, order);
	for (int i = good < 0 ? 0 : -1; i < c->naddr; i++) {
		int at = i < 0 ? good : order[i];
		bool cable = address_link_local(&c->addr[at]);

		for (int k = 0; k < (cable ? t->sockets.nown : 1) && n < RACE_MAX && (i < 0 || at != good); k++)
			if (!cable || address_link_local(&t->sockets.own[k])) {
				line[n] = (racer){c->addr[at], at, -1};
				line[n++].a.interface = cable ? t->sockets.own[k].interface : 0;
			}
	}
	return n;
}

static void race_lost(racer *r, char where[ADDRESS_TEXT])
{
	struct sockaddr_storage sa;
	address_sockaddr(&r->a, &sa);
	address_text(&sa, where);
	if (r->fd >= 0)
		close(r->fd);
	r->fd = -1;
}

/* Begins with one address after the other, until one of them has let this rank prove the secret. NULL, or what went
 * wrong with the one at `where`. */
static const char *connect_race(transport *t, racer *line, int n, hello *h, double limit, double deadline, racer **won,
                                char where[ADDRESS_TEXT])
{
	const char *why = "it has no address that this rank can use";
	double now = clock_now(), next = now, end = now;
	int begun = 0, left = 0;
	while (begun < n || left) {
		struct pollfd p[RACE_MAX + 1];
		int got;

		now = clock_now();
		while (begun < n && (now >= next || !left) && now < deadline) {
			racer *r = &line[begun++];

			r->fd = connect_begin(&r->a);
			if (r->fd < 0) {
				why = errno == EMFILE ? no_descriptor : strerror(errno);
				race_lost(r, where);
				continue;
			}
			left++;
			next = now + RACE_SECONDS;
			end = now + limit < deadline ? now + limit : deadline;
		}
		if (!left)
			break;
		for (int i = 0; i < begun; i++)
			p[i] = (struct pollfd){line[i].fd, POLLOUT, 0};
		p[begun] = (struct pollfd){t->failure.fd, POLLIN, 0};
		double until = begun < n && next < end ? next : end;
		got = poll(p, (nfds_t)begun + 1, until > now ? (int)((until - now) * 1e3) + 1 : 0);
		now = clock_now();
		for (int i = 0; i < begun; i++) {
			if (line[i].fd < 0 || (!p[i].revents && (begun < n || now < end || got > 0)))
				continue;
			why = p[i].revents ? connect_finish(t, line[i].fd, h, deadline) : "it does not answer";
			if (!why) {
				*won = &line[i];
				break;
			}
			race_lost(&line[i], where);
			left--;
		}
		if (!why || p[begun].revents || now >= deadline)
			break;
	}
	for (int i = 0; i < n; i++)
		if (line[i].fd >= 0 && (why || &line[i] != *won))
			close(line[i].fd);
	return why;
}

/* Makes one attempt at every address of the peer. */
static const char *connect_round(transport *t, endpoint *c, int local, hello *h, int passed, double limit,
                                 double deadline, int *fd, char where[ADDRESS_TEXT])
{
	racer line[RACE_MAX], *won = NULL;
	const char *why;
	if (local) {
		snprintf(where, ADDRESS_TEXT, "its local socket");
		return connect_local(t, c, h, passed, deadline, fd);
	}
	why = connect_race(t, line, race_line_up(t, c, h->to, line), h, limit, deadline, &won, where);
	if (!why && won) {
		*fd = won->fd;
		atomic_store_explicit(&c->good, (signed char)won->index, memory_order_relaxed);
	}
	return why;
}

/* Trying again would not help: this job's own connections use the descriptors. */
static gradcomp_status connect_short(const hello *h, const endpoint *c, gradcomp_error *err)
{
	struct rlimit r;
	unsigned long long most = getrlimit(RLIMIT_NOFILE, &r) ? 0 : (unsigned long long)r.rlim_cur;

	return error_set(
		err, GRADCOMP_ERR_NOMEM,
		"rank %u has no descriptor left to reach rank %u on %s: it may open %llu (ulimit -n), of which a "
		"collective that connects every pair of ranks takes one or more a rank",
		h->from, h->to, c->host, most);
}

gradcomp_status connect_peer(transport *t, hello *h, int passed, double deadline, int *fd, gradcomp_error *err)
{
	endpoint *c = &t->peers.endpoints[h->to];
	bool local = peer_share(t, t->rank, (int)h->to);
	double limit = 0.25, pause = 0.005, begin = clock_now();
	char where[ADDRESS_TEXT] = "";
	const char *why = "the time limit passed before the first attempt";
	h->from = (uint32_t)t->rank;
	h->nranks = (uint32_t)t->nranks;
	h->frames = (uint8_t)record_crypto_choose(local ? FRAMES_NONE : t->o.frames, c->aes);
	while (clock_now() < deadline) {
		why = connect_round(t, c, local, h, passed, limit, deadline, fd, where);
		if (!why)
			return GRADCOMP_OK;
		if (why == channel_gone)
			return error_set(err, GRADCOMP_ERR_PEER, "rank %u on %s left the group", h->to, c->host);
		if (why == no_descriptor)
			return connect_short(h, c, err);
		if (connect_wait(t, -1, 0, clock_now() + pause) < 0)
			return transport_failure(t, err);
		pause = pause < 0.2 ? 2 * pause : 0.25;
		limit = limit < 3 ? 2 * limit : 3;
	}
	return error_set(err, GRADCOMP_ERR_TIMEOUT, "cannot reach rank %u on %s within %.3g s: %s: %s", h->to, c->host,
	                 deadline - begin, where, why);
}
