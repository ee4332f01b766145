#define _GNU_SOURCE
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

static const char no_descriptor[] = "no descriptor is left";

int connect_kind(const transport *t, int rank)
{
	const endpoint *c = &t->endpoints[rank];

	if (t->allow_shm && c->unix_bytes && t->node[rank] == t->node[t->rank])
		return KIND_SHM;
	if (t->verbs && c->verbs && c->verbs == t->endpoints[t->rank].verbs && c->naddr &&
	    !atomic_load_explicit(&c->no_verbs, memory_order_relaxed))
		return KIND_VERBS;
	return t->allow_tcp && c->naddr ? KIND_TCP : -1;
}

/* Sleeps until fd has `events`, until `until`, or until the job has failed. 1, 0 or -1.
 * When this thread got no processor for so long that `until` has passed, what has come meanwhile counts. */
static int connect_wait(transport *t, int fd, short events, double until)
{
	struct pollfd p[2] = {{fd, events, 0}, {t->failed_fd, POLLIN, 0}};

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
	hello_write(h, text);
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
	if (!why && memcmp(welcome, handshake_welcome, WELCOME_BYTES))
		why = "it does not follow the protocol";
	return why;
}

static const char *connect_once(transport *t, const struct sockaddr *sa, socklen_t bytes, hello *h, int passed,
                                double limit, double deadline, int *out)
{
	const char *why = NULL;
	double now = clock_now();
	struct ucred cred;
	socklen_t len = sizeof cred;
	int on = 1, error = 0, fd = socket(sa->sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	socklen_t error_len = sizeof error;

	if (fd < 0)
		return errno == EMFILE ? no_descriptor : strerror(errno);
	if (connect(fd, sa, bytes) && errno != EINPROGRESS && errno != EINTR) {
		why = strerror(errno);
		goto fail;
	}
	if (sa->sa_family != AF_UNIX) {
		if (connect_wait(t, fd, POLLOUT, now + limit < deadline ? now + limit : deadline) <= 0) {
			why = "it does not answer";
			goto fail;
		}
		if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &error_len) || error) {
			why = strerror(error);
			goto fail;
		}
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
	} else if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &cred, &len) || cred.uid != geteuid()) {
		why = "the process that answers belongs to another user";
		goto fail;
	}
	why = connect_handshake(t, fd, h, passed, deadline);
	if (!why) {
		*out = fd;
		return NULL;
	}
fail:
	close(fd);
	return why;
}

/* One address of the peer. A link-local one may be reached over any of this rank's
 * interfaces. */
static const char *connect_address(transport *t, address a, hello *h, int passed, double limit, double deadline, int *fd,
                                   char where[ADDRESS_TEXT])
{
	const char *why = "this rank has no link-local address";
	struct sockaddr_storage sa;
	socklen_t bytes;

	for (int i = 0; i < (address_link_local(&a) ? t->nown : 1) && why && !atomic_load(&t->failed); i++) {
		if (address_link_local(&a) && !(a.scope = t->own[i].scope))
			continue;
		bytes = address_sockaddr(&a, &sa);
		address_text(&sa, where);
		why = connect_once(t, (struct sockaddr *)&sa, bytes, h, passed, limit, deadline, fd);
	}
	return why;
}

/* One attempt at every address of the peer. */
static const char *connect_round(transport *t, endpoint *c, int local, hello *h, int passed, double limit,
                                 double deadline, int *fd, char where[ADDRESS_TEXT])
{
	int order[ADDRESS_MAX];
	const char *why = "it has no address";

	if (local) {
		struct sockaddr_un un = {.sun_family = AF_UNIX};

		memcpy(un.sun_path + 1, c->unix_name, c->unix_bytes);
		snprintf(where, ADDRESS_TEXT, "its local socket");
		return connect_once(t, (struct sockaddr *)&un,
		                    (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + c->unix_bytes), h, passed,
		                    limit, deadline, fd);
	}
	address_order(t->own, t->nown, t->node[h->to] == t->node[t->rank], c->addr, c->naddr, order);
	for (int i = -1; i < c->naddr && clock_now() < deadline && !atomic_load(&t->failed); i++) {
		/* What worked before is tried first. */
		int a = i < 0 ? atomic_load_explicit(&c->good, memory_order_relaxed) : order[i];

		if (a < 0)
			continue;
		why = connect_address(t, c->addr[a], h, passed, limit, deadline, fd, where);
		if (!why) {
			atomic_store_explicit(&c->good, (signed char)a, memory_order_relaxed);
			break;
		}
	}
	return why;
}

/* Trying again would not help: this job's own connections use the descriptors. */
static gradcomp_status connect_short(const hello *h, const endpoint *c, gradcomp_error *err)
{
	struct rlimit r;
	unsigned long long most = getrlimit(RLIMIT_NOFILE, &r) ? 0 : (unsigned long long)r.rlim_cur;

	return error_set(err, GRADCOMP_ERR_NOMEM,
	                 "rank %u has no descriptor left to reach rank %u on %s: it may open %llu (ulimit -n), of which a "
	                 "collective that connects every pair of ranks takes one or more a rank", h->from, h->to, c->host, most);
}

gradcomp_status connect_peer(transport *t, hello *h, int passed, double deadline, int *fd, gradcomp_error *err)
{
	endpoint *c = &t->endpoints[h->to];
	int kind = connect_kind(t, (int)h->to);
	double limit = 0.5, pause = 0.005, begin = clock_now();
	char where[ADDRESS_TEXT] = "";
	const char *why = "the time limit passed before the first attempt";

	if (kind < 0)
		return error_set(err, GRADCOMP_ERR_UNSUPPORTED,
		                 "no transport connects rank %d on %s to rank %u on %s: transport.allow=%s", t->rank,
		                 t->endpoints[t->rank].host, h->to, c->host, t->allow);
	h->from = (uint32_t)t->rank;
	h->nranks = (uint32_t)t->nranks;
	h->frames = (uint8_t)record_crypto_choose(kind == KIND_SHM ? FRAMES_NONE : t->o.frames, c->aes);
	while (clock_now() < deadline) {
		why = connect_round(t, c, kind == KIND_SHM, h, passed, limit, deadline, fd, where);
		if (!why)
			return GRADCOMP_OK;
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
