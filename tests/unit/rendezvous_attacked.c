/* Ranks meet at rank 0's server, at a place that others know, and in spite of them: on some of its ports somebody
 * else listens who has not the token, or passes on to the server what comes, and others trouble the server itself.
 * Nobody without the token gets in, and each join takes no longer than it may. */
#include "base/clock.h"
#include "bootstrap/rendezvous_msg.h"
#include "tests/support/pace.h"
#include "tests/support/tap.h"
#include "tests/support/test_random.h"
#include "transport/wire/address.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#define JOINS 6
#define RANKS_MAX 5
#define PORTS 4
/* s of a join: 0.25 for each place before the server's, and to knock again where others have pushed it out */
#define LIMIT 4.0

enum { SILENT, CLOSES, GARBAGE, SHORT, REFLECTS, OLD, PASSES_ON, LIARS };
static const char *const liars[LIARS] = {"silent", "closes", "garbage", "short", "reflects", "old", "passes on"};
enum { IDLE, WRONG_TOKEN, OLD_TOKEN, REPLAY, TRUNCATED, OVERSIZED, RANDOM, SLOW, REFLECT, DEEDS };

static _Atomic int stop, intruders, done[DEEDS], lied[LIARS];
static unsigned char old_token[SECRET_BYTES], old_challenge[CHALLENGE_BYTES];
/* A rank sent this in an earlier join at this token: HELLO, PROOF, entries. */
static unsigned char recorded[4 * RENDEZVOUS_ENTRY_MAX];
static size_t nrecorded;

typedef struct place {
	int nranks, at; /* the server's of the ports */
	uint16_t ports[PORTS + 1];
	unsigned char token[SECRET_BYTES];
} place;

/* A thread has random numbers of its own. */
static uint32_t mine(uint64_t *state, uint32_t n)
{
	*state = *state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)(*state >> 33) % n;
}

static void fill(uint64_t *state, unsigned char *p, size_t n)
{
	while (n--)
		*p++ = (unsigned char)mine(state, 256);
}

/* From one of the addresses of this machine: 127.0.0.1 is that of the ranks. */
static int dial(uint16_t port, uint32_t from)
{
	struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)}, own = {.sin_family = AF_INET};
	struct timeval limit = {8, 0};
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	own.sin_addr.s_addr = htonl(INADDR_LOOPBACK + from);
	if (fd < 0)
		return -1;
	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
	if (bind(fd, (struct sockaddr *)&own, sizeof own) || connect(fd, (struct sockaddr *)&to, sizeof to)) {
		close(fd);
		return -1;
	}
	return fd;
}

static bool put(int fd, const void *p, size_t n)
{
	return send(fd, p, n, MSG_NOSIGNAL) == (ssize_t)n;
}

static bool get(int fd, void *p, size_t n)
{
	return recv(fd, p, n, MSG_WAITALL) == (ssize_t)n;
}

/* The greeting of a rank with some token; counts who is let in. */
static void knock(const place *w, int fd, const unsigned char *token, uint64_t *state, bool reflect)
{
	rendezvous_hello h = {mine(state, (uint32_t)w->nranks), (uint32_t)w->nranks, w->ports[w->at], {0}};
	unsigned char hello[RENDEZVOUS_HELLO_BYTES], in[CHALLENGE_BYTES], mac[SECRET_BYTES], welcome[WELCOME_BYTES];
	rendezvous_keys k;
	fill(state, h.nonce, sizeof h.nonce);
	rendezvous_hello_write(&h, hello);
	rendezvous_keys_make(&k, token);
	if (!put(fd, hello, sizeof hello) || !get(fd, in, sizeof in))
		return;
	memcpy(old_challenge, in, sizeof in);
	rendezvous_proof(&k, ROLE_CONNECT, hello, in, mac);
	if (put(fd, reflect ? in + NONCE_BYTES : mac, sizeof mac) && get(fd, welcome, sizeof welcome))
		intruders++;
}

static void deed(const place *w, int what, uint64_t *state)
{
	unsigned char junk[4096], answer[CHALLENGE_BYTES + WELCOME_BYTES];
	int held[60], n = what == IDLE ? (int)mine(state, 60) : 1;
	uint32_t from = mine(state, 4);
	fill(state, junk, sizeof junk);
	for (int i = 0; i < n; i++)
		held[i] = dial(w->ports[w->at], from);
	int fd = n ? held[0] : -1;
	if (fd >= 0)
		done[what]++;
	if (fd >= 0 && what == WRONG_TOKEN)
		knock(w, fd, junk, state, false);
	if (fd >= 0 && what == OLD_TOKEN)
		knock(w, fd, old_token, state, false);
	if (fd >= 0 && what == REFLECT)
		knock(w, fd, junk, state, true);
	/* A CHALLENGE at most is the answer to the same words, and no WELCOME. */
	if (fd >= 0 && what == REPLAY && nrecorded && put(fd, recorded, nrecorded) && get(fd, answer, sizeof answer))
		intruders++;
	rendezvous_hello_write(&(rendezvous_hello){0, (uint32_t)w->nranks, w->ports[w->at], {1}}, junk);
	if (fd >= 0 && what == TRUNCATED)
		put(fd, junk, mine(state, RENDEZVOUS_HELLO_BYTES));
	if (fd >= 0 && what == OVERSIZED)
		put(fd, junk, sizeof junk);
	if (fd >= 0 && what == RANDOM)
		put(fd, junk + RENDEZVOUS_HELLO_BYTES, 1 + mine(state, 2000));
	for (int i = 0; fd >= 0 && what == SLOW && i < RENDEZVOUS_HELLO_BYTES && !stop && put(fd, junk + i, 1); i++)
		(void)poll(NULL, 0, 20);
	if (fd < 0 || what == IDLE || what == TRUNCATED)
		(void)poll(NULL, 0, (int)mine(state, 100));
	for (int i = 0; i < n; i++)
		if (held[i] >= 0)
			close(held[i]);
}

typedef struct trouble {
	const place *w;
	uint64_t state;
	pthread_t thread;
} trouble;

static void *trouble_main(void *arg)
{
	trouble *t = arg;
	while (!stop)
		deed(t->w, (int)mine(&t->state, DEEDS), &t->state);
	return NULL;
}

typedef struct liar {
	const place *w;
	int fd, kind;
	uint64_t state;
	pthread_t thread;
} liar;

/* Passes on all that the server says, which is all it sees of the other end. Goes on until one end closes or has
 * its way. */
static void pass_on(const liar *l, int fd)
{
	int other = dial(l->w->ports[l->w->at], 0);
	unsigned char buf[4096];
	struct pollfd p[2] = {{fd, POLLIN, 0}, {other, POLLIN, 0}};
	size_t back = 0;
	while (other >= 0 && !stop && poll(p, 2, 50) >= 0) {
		for (int i = 0; i < 2; i++) {
			ssize_t n = p[i].revents ? recv(p[i].fd, buf, sizeof buf, MSG_DONTWAIT) : -1;

			if (p[i].revents && (n <= 0 || !put(p[!i].fd, buf, (size_t)n)))
				goto end;
			back += i && n > 0 ? (size_t)n : 0;
		}
	}
end:
	/* A WELCOME has gone through it: it is between a rank and the server. */
	intruders += back > CHALLENGE_BYTES;
	if (other >= 0)
		close(other);
}

static void lie(liar *l, int fd)
{
	unsigned char in[RENDEZVOUS_HELLO_BYTES], out[CHALLENGE_BYTES];
	lied[l->kind]++;
	if (l->kind == PASSES_ON) {
		pass_on(l, fd);
		return;
	}
	if (l->kind == CLOSES || !get(fd, in, sizeof in))
		return;
	fill(&l->state, out, sizeof out);
	if (l->kind == REFLECTS)
		memcpy(out + NONCE_BYTES, in + RENDEZVOUS_HELLO_BYTES - NONCE_BYTES, NONCE_BYTES);
	if (l->kind == OLD)
		memcpy(out, old_challenge, sizeof out);
	if (l->kind != SILENT)
		put(fd, out, l->kind == SHORT ? mine(&l->state, CHALLENGE_BYTES) : sizeof out);
	if (l->kind == SILENT || l->kind == SHORT)
		while (!stop && recv(fd, in, 1, MSG_DONTWAIT) != 0)
			(void)poll(NULL, 0, 20);
	else if (get(fd, in, 1)) /* a proof, to whom has not the token */
		intruders++;
}

static void *liar_main(void *arg)
{
	liar *l = arg;
	while (!stop) {
		struct pollfd p = {l->fd, POLLIN, 0};
		int fd = poll(&p, 1, 20) > 0 ? accept(l->fd, NULL, NULL) : -1;
		struct timeval limit = {1, 0};

		if (fd < 0)
			continue;
		setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
		lie(l, fd);
		close(fd);
	}
	return NULL;
}

typedef struct rank {
	const place *w;
	int rank;
	double delay, took;
	gradcomp_status status;
	gradcomp_error err;
	bool good;
	pthread_t thread;
} rank;

static void *rank_main(void *arg)
{
	rank *r = arg;
	rendezvous_client_options o = {.struct_size = sizeof o,
	                               .rank = r->rank,
	                               .nranks = r->w->nranks,
	                               .timeout = 60,
	                               .where = "127.0.0.1/8@1",
	                               .secret = r->w->token,
	                               .ports = r->w->ports};
	rendezvous_client *cl;
	char key[40], value[64];
	(void)poll(NULL, 0, (int)(r->delay * 1e3));
	double from = clock_now();
	r->status = rendezvous_connect(&o, &cl, &r->err);
	r->took = clock_now() - from;
	if (r->status)
		return NULL;
	const gradcomp_store *st = rendezvous_store(cl);
	snprintf(key, sizeof key, "gradcomp/%d", r->rank);
	snprintf(value, sizeof value, "record of %d", r->rank);
	r->good = !st->set(st->ctx, key, value, strlen(value));
	for (int i = 0; i < r->w->nranks; i++) {
		char want[64];

		snprintf(key, sizeof key, "gradcomp/%d", i);
		snprintf(want, sizeof want, "record of %d", i);
		long n = st->get(st->ctx, key, value, sizeof value, 30000);
		r->good &= n == (long)strlen(want) && !memcmp(value, want, (size_t)n);
	}
	rendezvous_leave(cl, 30);
	rendezvous_disconnect(cl);
	return NULL;
}

static void *serve(void *arg)
{
	(void)rendezvous_server_run(arg, -1, NULL);
	return NULL;
}

/* Rank 0 of a step of one, by hand: what it sends is kept. */
static void record(const place *w)
{
	unsigned char in[CHALLENGE_BYTES], welcome[WELCOME_BYTES];
	rendezvous_server *server;
	rendezvous_keys k;
	pthread_t thread;
	uint16_t port = w->ports[0];
	char range[16];
	gradcomp_error err = {0};
	snprintf(range, sizeof range, "%u-%u", port, port);
	int at = address_listen(range, &port);
	if (at < 0 || rendezvous_server_open_at(at, w->token, 1, &server, &err))
		return;
	pthread_create(&thread, NULL, serve, server);
	int fd = dial(port, 0);
	rendezvous_keys_make(&k, w->token);
	rendezvous_hello_write(&(rendezvous_hello){0, 1, port, {3}}, recorded);
	if (put(fd, recorded, RENDEZVOUS_HELLO_BYTES) && get(fd, in, sizeof in)) {
		nrecorded = RENDEZVOUS_HELLO_BYTES;
		rendezvous_proof(&k, ROLE_CONNECT, recorded, in, recorded + nrecorded);
		nrecorded += SECRET_BYTES;
		nrecorded += rendezvous_entry_seal(&k, 0, RENDEZVOUS_JOINED "0", "n1", 2, recorded + nrecorded);
		nrecorded += rendezvous_entry_seal(&k, 0, RENDEZVOUS_LEFT "0", "", 0, recorded + nrecorded);
		ok(put(fd, recorded + RENDEZVOUS_HELLO_BYTES, nrecorded - RENDEZVOUS_HELLO_BYTES) &&
		           get(fd, welcome, sizeof welcome),
		   "a join of one rank, which is recorded");
	}
	pthread_join(thread, NULL);
	rendezvous_server_close(server);
	close(fd);
	/* Said again in a join of several it is of that one. */
	put32(recorded + 8, (uint32_t)RANKS_MAX);
}

static void join(int number, place *w)
{
	static rank ranks[RANKS_MAX];
	liar l[PORTS];
	trouble t[3];
	rendezvous_server *server;
	pthread_t thread;
	gradcomp_error err = {0};
	int fd[PORTS], nliars = 0, good = 0;
	double slowest = 0;
	char there[100] = "";
	w->nranks = number ? 1 + (int)draw_up_to(RANKS_MAX - 1) : RANKS_MAX;
	w->at = (int)draw_up_to(PORTS) - 1;
	for (int i = 0; i < PORTS; i++) {
		w->ports[i] = 0;
		fd[i] = address_listen("", &w->ports[i]);
	}
	stop = 0;
	is_int(rendezvous_server_open_at(fd[w->at], w->token, w->nranks, &server, &err), 0,
	       "join %d: a server at the %d. port for %d ranks", number, w->at + 1, w->nranks);
	pthread_create(&thread, NULL, serve, server);
	for (int i = 0; i < PORTS; i++) {
		if (i == w->at)
			continue;
		l[nliars] = (liar){
			.w = w, .fd = fd[i], .kind = (int)draw_up_to(LIARS) - 1, .state = (uint64_t)(draw() * 1e15)};
		snprintf(there + strlen(there), sizeof there - strlen(there), " %s", liars[l[nliars].kind]);
		pthread_create(&l[nliars].thread, NULL, liar_main, &l[nliars]);
		nliars++;
	}
	for (int i = 0; i < 3; i++) {
		t[i] = (trouble){.w = w, .state = (uint64_t)(draw() * 1e15)};
		pthread_create(&t[i].thread, NULL, trouble_main, &t[i]);
	}
	for (int i = 0; i < w->nranks; i++) {
		ranks[i] = (rank){.w = w, .rank = i, .delay = 0.3 * draw()};
		pthread_create(&ranks[i].thread, NULL, rank_main, &ranks[i]);
	}
	for (int i = 0; i < w->nranks; i++) {
		pthread_join(ranks[i].thread, NULL);
		good += ranks[i].good;
		slowest = ranks[i].took > slowest ? ranks[i].took : slowest;
		if (!ranks[i].good)
			printf("# rank %d: status %d, %s\n", i, ranks[i].status, ranks[i].err.text);
	}
	is_int(good, w->nranks, "join %d: all have all records, beside%s", number, there);
	ok(in_time(slowest, LIMIT), "join %d: in time (%.2f s)", number, slowest);
	stop = 1;
	for (int i = 0; i < 3; i++)
		pthread_join(t[i].thread, NULL);
	for (int i = 0; i < nliars; i++) {
		pthread_join(l[i].thread, NULL);
		close(l[i].fd);
	}
	pthread_join(thread, NULL);
	rendezvous_server_close(server);
}

/* Nobody but a liar is there: he is named, and the rank goes on when its time is up. */
static void alone(place *w)
{
	rank r = {.w = w, .rank = 1};
	rendezvous_client_options o = {.struct_size = sizeof o,
	                               .rank = 1,
	                               .nranks = 2,
	                               .timeout = 1,
	                               .where = "127.0.0.1/8@1",
	                               .secret = w->token,
	                               .ports = w->ports};
	rendezvous_client *cl;
	char want[100];
	w->nranks = 2;
	for (int i = 0; i < PORTS; i++) {
		w->ports[i] = 0;
		int fd = address_listen("", &w->ports[i]);
		if (i == 1)
			w->at = fd;
		else
			close(fd);
	}
	stop = 0;
	liar l = {.w = w, .fd = w->at, .kind = GARBAGE};
	pthread_create(&l.thread, NULL, liar_main, &l);
	while ((r.status = rendezvous_connect(&o, &cl, &r.err)) == GRADCOMP_ERR_IO && o.timeout < 32)
		o.timeout *= 2;
	is_int(r.status, GRADCOMP_ERR_AUTH, "nobody there but one without the token");
	snprintf(want, sizeof want, "127.0.0.1:%u, of rank 0: what answers there does not have the step's token",
	         w->ports[1]);
	like(r.err.text, want, "he is named, and not the ports where nobody is");
	stop = 1;
	pthread_join(l.thread, NULL);
	close(l.fd);
}

int main(void)
{
	const char *seed = getenv("GRADCOMP_FUZZ_SEED");
	uint16_t free_port = 0;
	int lies = 0, deeds = 0;
	place w = {.nranks = 1};
	draw_state = seed ? strtoull(seed, NULL, 10) : (uint64_t)(clock_now() * 1e6);
	printf("# GRADCOMP_FUZZ_SEED=%llu\n", (unsigned long long)draw_state);
	for (int i = 0; i < SECRET_BYTES; i++) {
		w.token[i] = (unsigned char)(draw() * 256);
		old_token[i] = (unsigned char)(draw() * 256);
	}
	close(address_listen("", &free_port));
	w.ports[0] = free_port;
	record(&w);
	for (int i = 0; i < JOINS; i++)
		join(i, &w);
	alone(&w);
	is_int(intruders, 0, "nobody without the token has got a proof or a WELCOME");
	for (int i = 0; i < DEEDS; i++)
		deeds += done[i] > 0;
	for (int i = 0; i < LIARS; i++)
		lies += lied[i];
	ok(deeds > DEEDS / 2 && lies > 0, "%d kinds of trouble, %d lies", deeds, lies);
	return done_testing();
}
