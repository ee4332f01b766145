/* A process that does not have the job's secret gets nowhere, and nobody who has it is kept out by those who have
 * not. */
#include "tests/support/pace.h"
#include "tests/support/starved_thread.h"
#include "tests/support/transport_ranks.h"

#include "base/clock.h"
#include "transport/control/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <limits.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

static int port_of(const char *endpoint)
{
	const char *at = strchr(endpoint, '@');
	return at ? atoi(at + 1) : 0;
}

static int dial(int port)
{
	struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	struct timeval limit = {8, 0};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (connect(fd, (struct sockaddr *)&in, sizeof in)) {
		close(fd);
		return -1;
	}
	return fd;
}

/* Connects to the abstract socket of an endpoint record. */
static int dial_local(const char *endpoint)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};
	const char *hex = strstr(endpoint, "unix=") + 5;
	size_t n = 0;
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	for (; hex[2 * n] && hex[2 * n] != ' '; n++) {
		char two[3] = {hex[2 * n], hex[2 * n + 1], 0};

		un.sun_path[1 + n] = (char)strtol(two, NULL, 16);
	}
	if (connect(fd, (struct sockaddr *)&un, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n))) {
		close(fd);
		return -1;
	}
	return fd;
}

/* 1 when the other side has closed without a byte more. */
static bool is_closed(int fd)
{
	char byte;
	ssize_t n = recv(fd, &byte, 1, 0);
	return n == 0 || (n < 0 && errno == ECONNRESET);
}

static int all(int fd, unsigned char *p, size_t n)
{
	while (n) {
		ssize_t got = recv(fd, p, n, 0);

		if (got <= 0)
			return -1;
		p += got;
		n -= (size_t)got;
	}
	return 0;
}

static hello make_hello(uint32_t from, uint32_t to, uint32_t n, int kind)
{
	hello h = {
		.channel = 3, .from = from, .to = to, .nranks = n, .chunk = 65536, .kind = (uint8_t)kind, .streams = 1};
	secret_random(h.nonce, sizeof h.nonce, NULL);
	return h;
}

/* Shakes hands with `secret`; 1 when it gets WELCOME. */
static int try_handshake(int port, const hello *h, const unsigned char secret[32])
{
	unsigned char text[HELLO_BYTES], challenge[CHALLENGE_BYTES], mac[32], welcome[WELCOME_BYTES];
	int fd = dial(port), in;
	handshake_write(h, text);
	send(fd, text, sizeof text, MSG_NOSIGNAL);
	if (all(fd, challenge, sizeof challenge)) {
		close(fd);
		return 0;
	}
	handshake_mac(secret, ROLE_CONNECT, text, challenge, mac);
	send(fd, mac, sizeof mac, MSG_NOSIGNAL);
	in = !all(fd, welcome, sizeof welcome);
	close(fd);
	return in;
}

static void working(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request s, r;
	int x = 7, y = 0;
	board_exchange(b);
	while (!atomic_load(&b->late))
		usleep(1000);
	b->status[rank] = l->send(l->ctx, !rank, &x, sizeof x, &s, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->recv(l->ctx, !rank, &y, sizeof y, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &s, &b->error[rank]);
	if (y != 7)
		atomic_fetch_add(&b->wrong, 1);
	channel_close(c);
}

static void rude(int port, const board *b)
{
	unsigned char junk[4096], wrong[32] = {1}, text[HELLO_BYTES], challenge[CHALLENGE_BYTES], reply[64];
	hello h;
	double begin;
	int fd, other, came = 0;
	fd = dial(port);
	for (size_t i = 0; i < sizeof junk; i++)
		junk[i] = (unsigned char)rand();
	send(fd, junk, sizeof junk, MSG_NOSIGNAL);
	ok(is_closed(fd), "random bytes: dropped");
	close(fd);

	for (int i = 0; i < 200; i++) {
		fd = dial(port);
		secret_random(junk, HELLO_BYTES, NULL);
		h = make_hello(1, 0, 2, HELLO_TCP);
		handshake_write(&h, text);
		memcpy(junk, text, (size_t)(i % 20));
		came += send(fd, junk, HELLO_BYTES, MSG_NOSIGNAL) == HELLO_BYTES && is_closed(fd);
		close(fd);
	}
	is_int(came, 200, "200 half-random greetings: all dropped");

	h = make_hello(1, 0, 2, HELLO_TCP);
	ok(!try_handshake(port, &h, wrong), "a wrong secret is refused");
	h = make_hello(1, 0, 3, HELLO_TCP);
	ok(!try_handshake(port, &h, b->secret), "nor the right one with another number of ranks");
	h = make_hello(1, 0, 2, HELLO_TCP);
	h.stream = 1;
	ok(!try_handshake(port, &h, b->secret), "nor a stream that does not exist");
	h = make_hello(1, 0, 2, HELLO_TCP);
	h.chunk = 1u << 31;
	ok(!try_handshake(port, &h, b->secret), "nor a chunk of 2 GiB");
	h = make_hello(1, 0, 2, HELLO_SHM);
	ok(!try_handshake(port, &h, b->secret), "nor shared memory over tcp");
	h = make_hello(1, 0, 2, HELLO_CONTROL);
	/* It has the secret and is refused after the welcome, since rank 1 is here. */
	fd = dial(port);
	handshake_write(&h, text);
	send(fd, text, sizeof text, MSG_NOSIGNAL);
	all(fd, challenge, sizeof challenge);
	handshake_mac(b->secret, ROLE_CONNECT, text, challenge, reply);
	send(fd, reply, 32, MSG_NOSIGNAL);
	all(fd, reply, WELCOME_BYTES);
	ok(is_closed(fd), "nor a second control connection of a rank");
	close(fd);

	/* The proof of one connection is worth nothing on another. */
	h = make_hello(1, 0, 2, HELLO_TCP);
	fd = dial(port);
	other = dial(port);
	handshake_write(&h, text);
	send(fd, text, sizeof text, MSG_NOSIGNAL);
	send(other, text, sizeof text, MSG_NOSIGNAL);
	all(fd, challenge, sizeof challenge);
	handshake_mac(b->secret, ROLE_CONNECT, text, challenge, reply);
	all(other, challenge, sizeof challenge);
	send(other, reply, 32, MSG_NOSIGNAL);
	ok(is_closed(other), "a replayed proof is not welcome");
	close(other);
	/* Nor is what the rank itself has just said. */
	h = make_hello(1, 0, 2, HELLO_TCP);
	other = dial(port);
	handshake_write(&h, text);
	send(other, text, sizeof text, MSG_NOSIGNAL);
	all(other, challenge, sizeof challenge);
	send(other, challenge + NONCE_BYTES, 32, MSG_NOSIGNAL);
	ok(is_closed(other), "a reflected proof is not welcome");
	close(other);
	close(fd);

	fd = dial(port);
	begin = board_now();
	send(fd, text, 10, MSG_NOSIGNAL);
	ok(is_closed(fd) && board_now() - begin > 1 && in_time(board_now() - begin, 15),
	   "half a HELLO: dropped after a while");
	close(fd);
}

static void intruders_at_work(void)
{
	board *b = board_new(2);
	int fd;
	b->body = working;
	b->options.allow = "tcp";
	board_fork(b);
	while (atomic_load(&b->ready) < 2)
		usleep(1000);
	rude(port_of(b->endpoint[0]), b);
	atomic_store(&b->late, 1);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "the ranks have worked on as if nothing had happened");
	board_free(b);

	b = board_new(2);
	b->body = working;
	board_fork(b);
	while (atomic_load(&b->ready) < 2)
		usleep(1000);
	fd = dial_local(b->endpoint[0]);
	ok(fd >= 0 &&
	           send(fd, "GCH1 hello, I am a rank of this job, and this text has 64 bytes", 64, MSG_NOSIGNAL) ==
	                   64 &&
	           is_closed(fd),
	   "text that is no HELLO, at the local socket: dropped");
	close(fd);
	if (!getuid()) {
		pid_t pid = fork();
		int status;

		if (!pid)
			_exit(setresuid(65534, 65534, 65534) || (fd = dial_local(b->endpoint[0])) < 0 ||
			      !is_closed(fd));
		waitpid(pid, &status, 0);
		ok(!status, "another user at the local socket is dropped before a word");
	} else {
		skip("needs root", "another user at the local socket");
	}
	atomic_store(&b->late, 1);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "and the ranks have worked on");
	board_free(b);
}

static void many(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request rq[2 * BOARD_RANKS];
	int x = rank, y[BOARD_RANKS];
	for (int p = 0; p < b->n && !b->status[rank]; p++) {
		if (p == rank)
			continue;
		b->status[rank] = l->send(l->ctx, p, &x, sizeof x, &rq[2 * p], &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->recv(l->ctx, p, &y[p], sizeof y[p], &rq[2 * p + 1], &b->error[rank]);
	}
	for (int p = 0; p < b->n && !b->status[rank]; p++) {
		if (p == rank)
			continue;
		b->status[rank] = l->wait(l->ctx, &rq[2 * p], &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &rq[2 * p + 1], &b->error[rank]);
		if (y[p] != p)
			atomic_fetch_add(&b->wrong, 1);
	}
	channel_close(c);
}

/* Some 500 connections that never say anything, all the time, while rank 3 joins
 * late. */
static void flood(void)
{
	board *b = board_new(4);
	double begin;
	pid_t pid;
	b->options.allow = "tcp";
	b->options.timeout = 20;
	b->late_rank = 3;
	b->body = many;
	board_fork(b);
	while (atomic_load(&b->there) < 4)
		usleep(1000);
	pid = fork();
	if (!pid) {
		int fd[500] = {0}, port = port_of(b->endpoint[1]);

		alarm(60);
		for (int i = 0;; i = (i + 1) % 500) {
			if (fd[i] > 0)
				close(fd[i]);
			fd[i] = dial(port);
			if (i % 3 == 1 && fd[i] > 0)
				send(fd[i], "GCH1", 4, MSG_NOSIGNAL | MSG_DONTWAIT);
		}
	}
	usleep(500000);
	begin = board_now();
	atomic_store(&b->late, 1);
	board_join(b);
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
	ok(board_well(b), "a rank joins and all work through a flood of connections, in %.2f s", board_now() - begin);
	board_free(b);
}

/* A rank of another job at the same addresses. */
static void other_secret(void)
{
	board *b = board_new(2), *other = board_new(2);
	const char *endpoints[2];
	gradcomp_error err;
	transport *t;
	b->options.allow = "tcp";
	b->options.timeout = 20;
	b->late_rank = 1;
	b->body = many;
	board_fork(b);
	while (atomic_load(&b->there) < 2)
		usleep(1000);
	other->options = b->options;
	other->options.rank = 1;
	other->options.timeout = 1;
	transport_listen(&other->options, &t, &err);
	endpoints[0] = b->endpoint[0];
	endpoints[1] = transport_endpoint(t);
	ok(transport_start(t, endpoints, other->secret, &err) < 0, "a rank with another secret does not join");
	like(err.text, "cannot reach rank 0 on ", "it says whom it cannot reach");
	like(err.text, "does not have the job's secret", "and why");
	transport_stop(t, NULL);
	atomic_store(&b->late, 1);
	board_join(b);
	ok(board_well(b), "the rank with the right one does");
	board_free(b);
	board_free(other);
}

enum { CROWD = 300, CROWD_TURNS = 100 };
static unsigned char crowd_secret[32];

typedef struct comer {
	int fd;
	bool asked, proved, in;
	unsigned have;
	unsigned char hello[HELLO_BYTES], got[CHALLENGE_BYTES];
} comer;

static const char *any_hello(void *ctx, const pending_conn *p)
{
	(void)ctx;
	(void)p;
	return NULL;
}

static void crowd_proof(void *ctx, handshake_role role, const pending_conn *p, unsigned char mac[SHA256_BYTES])
{
	(void)ctx;
	handshake_mac(crowd_secret, role, p->hello, p->nonce, mac);
}

static const char *welcome(void *ctx, pending_conn *p)
{
	(void)ctx;
	if (listener_pending_welcome(p))
		return "it does not read";
	close(p->fd);
	p->fd = -1;
	return NULL;
}

/* Does what a rank does that gets the processor once a turn; when it is turned away it comes again. */
static void come(comer *c, int port)
{
	unsigned want = c->proved ? WELCOME_BYTES : CHALLENGE_BYTES;
	unsigned char mac[SHA256_BYTES];
	ssize_t n;
	if (c->fd < 0) {
		c->fd = dial(port);
		c->asked = c->proved = false;
		c->have = 0;
	} else if (!c->asked) {
		send(c->fd, c->hello, HELLO_BYTES, MSG_NOSIGNAL);
		c->asked = true;
	} else {
		n = recv(c->fd, c->got + c->have, want - c->have, MSG_DONTWAIT);
		if (!n || (n < 0 && errno != EAGAIN)) {
			close(c->fd);
			c->fd = -1;
			return;
		}
		c->have += n > 0 ? (unsigned)n : 0;
		if (c->have < want)
			return;
		c->have = 0;
		c->in = c->proved;
		handshake_mac(crowd_secret, ROLE_CONNECT, c->hello, c->got, mac);
		if (!c->proved)
			send(c->fd, mac, PROOF_BYTES, MSG_NOSIGNAL);
		c->proved = true;
	}
}

static void crowd(void)
{
	static const listener_ops ops = {HELLO_BYTES, any_hello, crowd_proof, welcome};
	static comer all[CROWD];
	static listener l;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t bytes = sizeof at;
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), in = 0, turns = 0;
	struct pollfd p[LISTENER_POLLS];
	ok(!bind(fd, (struct sockaddr *)&at, bytes) && !listen(fd, 1024) &&
	           !getsockname(fd, (struct sockaddr *)&at, &bytes),
	   "a listening socket");
	listener_init(&l, &ops, NULL, NULL);
	listener_add(&l, fd, false);
	for (int i = 0; i < CROWD; i++) {
		all[i].fd = -1;
		all[i].hello[0] = (unsigned char)i;
	}
	for (; in < CROWD && turns < CROWD_TURNS; turns++) {
		int n;

		for (int i = in = 0; i < CROWD; in += all[i++].in)
			if (!all[i].in)
				come(&all[i], ntohs(at.sin_port));
		n = listener_poll(&l, p, 0);
		poll(p, (nfds_t)n, 0);
		listener_serve(&l, p, n);
	}
	is_int(in, CROWD, "of %d ranks that come at once all get in, in %d turns,", CROWD, turns);
	for (int i = 0; i < CROWD; i++)
		if (all[i].fd >= 0)
			close(all[i].fd);
	listener_close(&l);
}

static const listener_ops starved_ops = {HELLO_BYTES, any_hello, crowd_proof, welcome};

/* A turn of a thread that gets the processor `late` seconds after it has looked what there is. */
static void late_turn(listener *l, int fd, const void *sent, size_t bytes, bool late)
{
	struct pollfd p[LISTENER_POLLS];
	int n = listener_poll(l, p, 0);
	poll(p, (nfds_t)n, 0);
	if (bytes && send(fd, sent, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
		return;
	if (late)
		for (int i = 0; i < PENDING_MAX; i++)
			l->pending[i].deadline -= 2 * PENDING_SECONDS;
	listener_serve(l, p, n);
}

static double pending_deadline(const listener *l)
{
	for (int i = 0; i < PENDING_MAX; i++)
		if (l->pending[i].fd >= 0)
			return l->pending[i].deadline;
	return 0;
}

static bool here(int fd, size_t bytes)
{
	unsigned char got[CHALLENGE_BYTES];
	return recv(fd, got, sizeof got, MSG_DONTWAIT | MSG_PEEK) >= (ssize_t)bytes;
}

static void starved_listener(void)
{
	static listener l;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t bytes = sizeof at;
	unsigned char hello[HELLO_BYTES] = {7}, got[CHALLENGE_BYTES], mac[SHA256_BYTES];
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), fd;
	double first;
	ok(!bind(listening, (struct sockaddr *)&at, bytes) && !listen(listening, 16) &&
	           !getsockname(listening, (struct sockaddr *)&at, &bytes),
	   "a listening socket");
	listener_init(&l, &starved_ops, NULL, NULL);
	listener_add(&l, listening, false);

	fd = dial(ntohs(at.sin_port));
	late_turn(&l, fd, NULL, 0, false);
	late_turn(&l, fd, hello, sizeof hello, true);
	ok(here(fd, CHALLENGE_BYTES) && pending_deadline(&l) > clock_now(),
	   "a HELLO that came while the listener got no processor is answered, and the PROOF has time of its own");
	all(fd, got, sizeof got);
	handshake_mac(crowd_secret, ROLE_CONNECT, hello, got, mac);
	late_turn(&l, fd, mac, sizeof mac, true);
	ok(here(fd, WELCOME_BYTES), "so is such a PROOF");
	close(fd);

	fd = dial(ntohs(at.sin_port));
	send(fd, hello, sizeof hello, MSG_NOSIGNAL);
	late_turn(&l, fd, NULL, 0, false);
	ok(here(fd, CHALLENGE_BYTES),
	   "a HELLO that is there already is answered in the turn that accepts its connection");
	close(fd);
	late_turn(&l, fd, NULL, 0, true);

	fd = dial(ntohs(at.sin_port));
	late_turn(&l, fd, NULL, 0, false);
	first = pending_deadline(&l);
	late_turn(&l, fd, hello, HELLO_BYTES / 2, false);
	ok(!(pending_deadline(&l) > first) && first <= clock_now() + PENDING_SECONDS, "half a HELLO earns no time");
	late_turn(&l, fd, hello + HELLO_BYTES / 2, HELLO_BYTES / 2, false);
	first = pending_deadline(&l);
	for (int i = 0; i < 20; i++)
		late_turn(&l, fd, mac, 1, false);
	ok(here(fd, CHALLENGE_BYTES) && !(pending_deadline(&l) > first) && first <= clock_now() + PENDING_SECONDS,
	   "a PROOF that drips earns none either");
	late_turn(&l, fd, mac, 1, true);
	all(fd, got, sizeof got);
	ok(is_closed(fd), "and is dropped, though one more byte has just come");
	close(fd);
	listener_close(&l);
}

/* It lives on when its parent has ended: nobody may wait for it. */
static void forked(void)
{
	static listener l;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
	socklen_t bytes = sizeof at;
	unsigned char hello[HELLO_BYTES] = {7}, got[CHALLENGE_BYTES], mac[SHA256_BYTES];
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), silent, challenged,
	    ended[2] = {-1, -1}, status;
	pid_t pid;
	ok(!bind(listening, (struct sockaddr *)&at, bytes) && !listen(listening, 16) &&
	           !getsockname(listening, (struct sockaddr *)&at, &bytes) && !pipe(ended),
	   "a listening socket");
	listener_init(&l, &starved_ops, NULL, NULL);
	listener_close_in_forks(&l);
	listener_add(&l, listening, false);
	silent = dial(ntohs(at.sin_port));
	late_turn(&l, silent, NULL, 0, false);
	challenged = dial(ntohs(at.sin_port));
	late_turn(&l, challenged, NULL, 0, false);
	late_turn(&l, challenged, hello, sizeof hello, false);
	pid = fork();
	if (!pid) {
		char byte;

		close(ended[1]);
		while (read(ended[0], &byte, 1) > 0)
			;
		listener_close(&l);
		_exit(0);
	}
	close(ended[0]);
	all(challenged, got, sizeof got);
	handshake_mac(crowd_secret, ROLE_CONNECT, hello, got, mac);
	late_turn(&l, challenged, mac, sizeof mac, false);
	ok(here(challenged, WELCOME_BYTES), "who was connected when a process was forked off goes on");
	close(challenged);
	listener_close(&l);
	ok(is_closed(silent), "when the listener is closed the other end sees it, though the process lives");
	close(silent);
	silent = dial(ntohs(at.sin_port));
	ok(silent < 0, "and nobody is connected to what does not answer any more");
	close(ended[1]);
	ok(waitpid(pid, &status, 0) == pid && !status, "the process may close its copy");
}

/* The thread that connects gets no processor whenever it has looked for something and not found it. */
typedef struct starved_rank {
	transport *t;
	const char *endpoints[2];
	unsigned char secret[32];
	gradcomp_status st;
	gradcomp_error err;
} starved_rank;

static void *starved_start(void *arg)
{
	starved_rank *r = arg;
	starving = INT_MAX;
	r->st = transport_start(r->t, r->endpoints, r->secret, &r->err);
	starving = 0;
	return NULL;
}

static void *starved_stop(void *arg)
{
	starved_rank *r = arg;
	transport_stop(r->t, NULL);
	return NULL;
}

static void starved_connector(void)
{
	board *b = board_new(2);
	transport_options o = b->options;
	starved_rank one = {.secret = {3}};
	gradcomp_error err;
	pthread_t thread;
	transport *t;
	o.allow = "tcp";
	o.timeout = 60;
	o.rank = 0;
	transport_listen(&o, &t, &err);
	o.rank = 1;
	transport_listen(&o, &one.t, &err);
	one.endpoints[0] = transport_endpoint(t);
	one.endpoints[1] = transport_endpoint(one.t);
	pthread_create(&thread, NULL, starved_start, &one);
	is_int(transport_start(t, one.endpoints, one.secret, &err), GRADCOMP_OK, "rank 0 of two has rank 1");
	pthread_join(thread, NULL);
	is_int(one.st, GRADCOMP_OK, "which connects, though its thread sleeps through every limit: %s",
	       one.st ? one.err.text : "");
	pthread_create(&thread, NULL, starved_stop, &one);
	transport_stop(t, NULL);
	pthread_join(thread, NULL);
	board_free(b);
}

int main(void)
{
	crowd();
	starved_listener();
	forked();
	starved_connector();
	intruders_at_work();
	flood();
	other_secret();
	return done_testing();
}
