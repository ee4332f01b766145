/* A client's share in passing the log on. One thread reads it, from the client that is its
 * relay or from the server, and writes it to the client itself, over a pair of sockets, and
 * to the clients it is a relay for. The log is one stream of bytes, the same at every place,
 * so a relay that is lost or slow is replaced by asking the server for the rest. */
#define _GNU_SOURCE
#include "base/thread.h"
#include "bootstrap/rendezvous_client_internal.h"
#include "transport/control/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define QUIET 2.0   /* s without a byte from the relay: then the server is asked whether there is more */
#define CONNECT 2.0 /* s for the connection to the relay, all its addresses together */
#define LINGER 1.0  /* s after the client's end for others to take what is here */
#define INPUT 65536

enum { STOP, SERVER, UPSTREAM, READERS }; /* the descriptors that are polled */

typedef struct reader {
	int fd; /* -1: none */
	size_t sent;
} reader;

struct relay {
	rendezvous_client *cl;
	rendezvous_client up; /* the relay's own connection to the relay above it, for this thread */
	pthread_t thread;
	int stop;                              /* an eventfd */
	_Atomic double until;                  /* s: the thread ends then; 0: it goes on */
	listener listener;                     /* accepts clients that this one is a relay for */
	reader readers[1 + RENDEZVOUS_FANOUT]; /* the first: the client itself */
	bool direct, lost; /* the server sends the log; the relay is lost, the server does not know yet */
	double heard;
	size_t skip; /* bytes from the server that are here already */
	unsigned char *log;
	size_t bytes, capacity, have;
	unsigned char in[RENDEZVOUS_ENTRY_MAX]; /* bytes of an entry that the server sends this client alone */
};

static const char *check_hello(void *ctx, const pending_conn *p)
{
	const relay *l = ctx;
	rendezvous_hello h;
	const char *why = rendezvous_hello_read(p->in, &h);
	if (!why && (h.nranks != (uint32_t)l->cl->o.nranks || rendezvous_relay_of((int)h.rank) != l->cl->o.rank))
		why = "it is not one that this node passes the list on to";
	if (!why && !rendezvous_hello_direct(&h, p->fd))
		why = "its greeting was meant for another port";
	return why;
}

static void proof(void *ctx, handshake_role role, const pending_conn *p, unsigned char mac[SHA256_BYTES])
{
	const relay *l = ctx;
	rendezvous_proof(&l->cl->keys, role, p->hello, p->nonce, mac);
}

static const char *take_reader(void *ctx, pending_conn *p)
{
	relay *l = ctx;
	reader *to = &l->readers[1 + get32(p->hello + 4) % RENDEZVOUS_FANOUT];
	if (to->fd >= 0)
		return "its rank is connected already";
	if (listener_pending_welcome(p))
		return "it does not read";
	*to = (reader){.fd = p->fd};
	p->fd = -1;
	return NULL;
}

static const listener_ops relay_ops = {RENDEZVOUS_HELLO_BYTES, check_hello, proof, take_reader};

static void send_log(relay *l, reader *to)
{
	ssize_t n = to->sent < l->bytes
	                    ? send(to->fd, l->log + to->sent, l->bytes - to->sent, MSG_NOSIGNAL | MSG_DONTWAIT)
	                    : 0;
	if (n > 0)
		to->sent += (size_t)n;
	if (n < 0 && errno != EAGAIN && errno != EINTR) {
		close(to->fd);
		to->fd = -1;
	}
}

/* A client has nothing to say here: it is gone. */
static void check_reader(reader *from)
{
	char byte;
	ssize_t n = recv(from->fd, &byte, 1, MSG_DONTWAIT);
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return;
	close(from->fd);
	from->fd = -1;
}

static void end_upstream(relay *l, bool lost)
{
	if (l->up.fd >= 0)
		close(l->up.fd);
	l->up.fd = -1;
	l->lost = lost;
}

/* Ask the server for the log from here on: if there is more, or in any case. */
static void ask_server(relay *l)
{
	unsigned char value[9];
	put64(value, l->bytes);
	value[8] = l->lost;
	if (!client_send(l->cl, RENDEZVOUS_ASK, value, sizeof value))
		return; /* then the server does not read, which the client itself says when it is so */
	l->lost = false;
	l->heard = clock_now();
}

static const char *grow(relay *l, size_t bytes)
{
	size_t more = 2 * l->capacity + bytes + INPUT;
	unsigned char *log;
	if (l->bytes + bytes <= l->capacity)
		return NULL;
	log = realloc(l->log, more);
	if (!log)
		return "more than there is memory for";
	l->log = log;
	l->capacity = more;
	return NULL;
}

/* The server has said where the log can be read. NULL, or what is wrong. */
static const char *told(relay *l, const char *key, const unsigned char *value, size_t bytes)
{
	char where[RENDEZVOUS_VALUE_MAX + 1];
	double until = clock_now() + CONNECT;
	bool unproved = false;
	if (!strcmp(key, RENDEZVOUS_LOG) && bytes == 8 && get64(value) <= l->bytes) {
		end_upstream(l, false);
		l->direct = true;
		l->skip = l->bytes - (size_t)get64(value);
		return NULL;
	}
	if (strcmp(key, RENDEZVOUS_RELAY) || l->direct || l->up.fd >= 0)
		return "damaged";
	memcpy(where, value, bytes);
	where[bytes] = 0;
	l->up.nat = 0;
	if (client_addresses(&l->up, where, NULL))
		return "damaged";
	if (client_try(&l->up, until, &unproved))
		l->lost = true;
	l->heard = clock_now();
	return NULL;
}

/* Takes bytes of the log. */
static const char *take_log(relay *l, const unsigned char *in, size_t bytes)
{
	size_t skip = bytes < l->skip ? bytes : l->skip;
	const char *why = grow(l, bytes);
	if (why || !bytes)
		return why;
	l->skip -= skip;
	memcpy(l->log + l->bytes, in + skip, bytes - skip);
	l->bytes += bytes - skip;
	l->heard = clock_now();
	return NULL;
}

/* Reads from the server: entries for this client alone, up to the one that the log follows. */
static const char *read_server(relay *l)
{
	unsigned char in[INPUT], *value;
	ssize_t n = recv(l->cl->fd, in, l->direct ? sizeof in : sizeof l->in - l->have, MSG_DONTWAIT);
	const char *why = NULL;
	size_t bytes;
	uint32_t rank;
	long entry = 0;
	if (n < 0 && (errno == EAGAIN || errno == EINTR))
		return NULL;
	if (n <= 0)
		return "gone";
	if (l->direct)
		return take_log(l, in, (size_t)n);
	memcpy(l->in + l->have, in, (size_t)n);
	l->have += (size_t)n;
	while (!why && !l->direct && (entry = rendezvous_entry_check(&l->cl->keys, l->in, l->have, &rank)) > 0) {
		value = rendezvous_entry_open(&l->cl->keys, l->in, (size_t)entry, &bytes);
		why = value ? told(l, (char *)l->in + RENDEZVOUS_HEAD, value, bytes) : "damaged";
		l->have -= (size_t)entry;
		memmove(l->in, l->in + entry, l->have);
	}
	if (!why && l->direct)
		return take_log(l, l->in, l->have);
	return why || entry >= 0 ? why : "damaged";
}

static const char *read_upstream(relay *l)
{
	const char *why = grow(l, INPUT);
	ssize_t n;
	if (why)
		return why;
	n = recv(l->up.fd, l->log + l->bytes, INPUT, MSG_DONTWAIT);
	if (n > 0) {
		l->bytes += (size_t)n;
		l->heard = clock_now();
	} else if (!n || (errno != EAGAIN && errno != EINTR)) {
		end_upstream(l, true);
	}
	return NULL;
}

static int closing(void *ctx)
{
	const relay *l = ctx;
	return atomic_load(&l->until) > 0;
}

static bool behind(const relay *l)
{
	for (int i = 1; i <= RENDEZVOUS_FANOUT; i++)
		if (l->readers[i].fd >= 0 && l->readers[i].sent < l->bytes)
			return true;
	return false;
}

static int pause_ms(const relay *l, double now)
{
	double first = listener_deadline(&l->listener), quiet = l->heard + QUIET;
	first = l->direct || first < quiet ? first : quiet;
	first = first < now + QUIET ? first : now + QUIET;
	return first > now ? (int)((first - now) * 1e3) + 1 : 0;
}

/* Serves one round of it. Returns NULL, or why it ends. */
static const char *serve(relay *l)
{
	struct pollfd p[READERS + 1 + RENDEZVOUS_FANOUT + LISTENER_POLLS],
		*listening = p + READERS + 1 + RENDEZVOUS_FANOUT;
	double now = clock_now(), until = atomic_load(&l->until);
	const char *why = NULL;
	int n;
	p[STOP] = (struct pollfd){until > 0 ? -1 : l->stop, POLLIN, 0};
	p[SERVER] = (struct pollfd){l->cl->fd, POLLIN, 0};
	p[UPSTREAM] = (struct pollfd){l->up.fd, POLLIN, 0};
	for (int i = 0; i <= RENDEZVOUS_FANOUT; i++)
		p[READERS + i] = (struct pollfd){l->readers[i].fd,
		                                 (short)(POLLIN | (l->readers[i].sent < l->bytes ? POLLOUT : 0)), 0};
	n = listener_poll(&l->listener, listening, now);
	if (until > 0 && (now >= until || !behind(l)))
		return "";
	(void)poll(p, (nfds_t)(READERS + 1 + RENDEZVOUS_FANOUT + n), until > 0 ? 10 : pause_ms(l, now));
	if (p[SERVER].revents)
		why = read_server(l);
	if (!why && p[UPSTREAM].revents && l->up.fd >= 0)
		why = read_upstream(l);
	for (int i = 0; i <= RENDEZVOUS_FANOUT; i++) {
		if (l->readers[i].fd >= 0 && p[READERS + i].revents & ~POLLOUT)
			check_reader(&l->readers[i]);
		if (l->readers[i].fd >= 0)
			send_log(l, &l->readers[i]);
	}
	listener_serve(&l->listener, listening, n);
	if (!why && !l->direct && (l->lost || clock_now() > l->heard + QUIET))
		ask_server(l);
	return why;
}

static void *relay_main(void *arg)
{
	relay *l = arg;
	const char *why;
	do
		why = serve(l);
	while (!why);
	/* The client reads this after the end of what it reads. */
	if (!strcmp(why, "gone"))
		snprintf(l->cl->ended, sizeof l->cl->ended,
		         "the rendezvous server of the step at %s is gone: %s has ended", l->cl->server,
		         client_of_ranks(l->cl) ? "rank 0" : "srun");
	else
		snprintf(l->cl->ended, sizeof l->cl->ended, "what the rendezvous server at %s sent is %s",
		         l->cl->server, why);
	for (int i = 0; i <= RENDEZVOUS_FANOUT; i++)
		if (l->readers[i].fd >= 0)
			close(l->readers[i].fd);
	return NULL;
}

/* Listens for the clients it is a relay for, and says where. */
static gradcomp_status offer(relay *l, gradcomp_error *err)
{
	char where[ADDRESS_LIST_TEXT];
	uint16_t port = 0;
	int fd = address_listen("", &port);
	gradcomp_status st;
	if (fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO, "cannot listen for other nodes of the step");
	listener_add(&l->listener, fd, false);
	st = address_own_text(port, where, err);
	if (!st && !client_send(l->cl, RENDEZVOUS_RELAY, where, strlen(where)))
		st = error_set(err, GRADCOMP_ERR_IO, "the rendezvous server of the step at %s does not read",
		               l->cl->server);
	return st;
}

gradcomp_status relay_start(rendezvous_client *cl, gradcomp_error *err)
{
	relay *l = calloc(1, sizeof *l);
	int pair[2] = {-1, -1};
	gradcomp_status st = GRADCOMP_OK;
	if (!l)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for a rendezvous with the other nodes");
	l->cl = cl;
	l->up.o = (rendezvous_client_options){.rank = cl->o.rank, .nranks = cl->o.nranks, .stop = closing, .ctx = l};
	l->up.keys = cl->keys;
	l->up.fd = -1;
	l->heard = clock_now();
	for (int i = 0; i <= RENDEZVOUS_FANOUT; i++)
		l->readers[i].fd = -1;
	listener_init(&l->listener, &relay_ops, l, NULL);
	l->stop = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (l->stop < 0 || socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair))
		st = error_errno(err, GRADCOMP_ERR_IO, "no sockets for a rendezvous with the other nodes");
	l->readers[0].fd = pair[0];
	if (!st && rendezvous_first_of(cl->o.rank) < cl->o.nranks)
		st = offer(l, err);
	if (!st && thread_start(&l->thread, relay_main, l))
		st = error_set(err, GRADCOMP_ERR_NOMEM, "no thread for a rendezvous with the other nodes");
	if (st) {
		listener_close(&l->listener);
		for (int i = 0; i < 2; i++)
			if (pair[i] >= 0)
				close(pair[i]);
		if (l->stop >= 0)
			close(l->stop);
		secret_wipe(&l->up.keys, sizeof l->up.keys);
		free(l);
		return st;
	}
	cl->log_fd = pair[1];
	cl->relay = l;
	return GRADCOMP_OK;
}

void relay_stop(rendezvous_client *cl, bool linger)
{
	relay *l = cl->relay;
	uint64_t one = 1;
	if (!l)
		return;
	atomic_store(&l->until, clock_now() + (linger ? LINGER : 0));
	(void)!write(l->stop, &one, sizeof one);
	pthread_join(l->thread, NULL);
	end_upstream(l, false);
	listener_close(&l->listener);
	close(l->stop);
	close(cl->log_fd);
	cl->relay = NULL;
	secret_wipe(&l->up.keys, sizeof l->up.keys);
	free(l->log);
	free(l);
}
