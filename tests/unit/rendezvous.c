/* The rendezvous server: clients find each other, connections without the token do no harm, and a
 * node that is missing or dies is named. */
#include "bootstrap/rendezvous_msg.h"
#include "tests/support/starved_thread.h"
#include "tests/support/tap.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CLIENTS 24
#define MANY 300 /* 16 have the list from the server, 256 from these, 28 from those */

static double clock_s(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

typedef struct server {
	rendezvous_server *server;
	int until[2];
	pthread_t thread;
	gradcomp_status status;
	char where[4096], token[256]; /* clients still read them when it has ended */
} server;

static void *serve(void *p)
{
	server *s = p;
	s->status = rendezvous_server_run(s->server, s->until[0], NULL);
	return NULL;
}

static void publish(server *s)
{
	snprintf(s->where, sizeof s->where, "%s", rendezvous_server_where(s->server));
	snprintf(s->token, sizeof s->token, "%s", rendezvous_server_token(s->server));
}

static int begin(server *s, int nranks)
{
	gradcomp_error err;
	memset(s, 0, sizeof *s);
	if (rendezvous_server_open(NULL, nranks, &s->server, &err) || pipe(s->until)) {
		printf("# %s\n", err.text);
		return -1;
	}
	publish(s);
	return pthread_create(&s->thread, NULL, serve, s);
}

static void end(server *s, int cut)
{
	if (cut)
		close(s->until[1]);
	pthread_join(s->thread, NULL);
	if (!cut)
		close(s->until[1]);
	close(s->until[0]);
	rendezvous_server_close(s->server);
}

static gradcomp_status join(const server *s, int rank, int nranks, double timeout, rendezvous_client **g,
                            gradcomp_error *err)
{
	rendezvous_client_options o = {.struct_size = sizeof o,
	                               .rank = rank,
	                               .nranks = nranks,
	                               .timeout = timeout,
	                               .where = s->where,
	                               .token = s->token};
	return rendezvous_connect(&o, g, err);
}

static int port_of(const server *s)
{
	return atoi(strchr(rendezvous_server_where(s->server), '@') + 1);
}

static int connect_to(int port)
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa)) {
		close(fd);
		return -1;
	}
	return fd;
}

typedef struct task {
	const server *s;
	int rank, nranks;
	double timeout;
	size_t bytes;           /* rank 0's value has so many */
	pthread_barrier_t *all; /* before it leaves, as in a job; or NULL */
	int good;
	gradcomp_status status;
	gradcomp_error err;
	pthread_t thread;
} task;

/* Connects, publishes its endpoint and gets everybody's, as the bootstrap of a job does. */
static void *client(void *p)
{
	task *t = p;
	rendezvous_client *g;
	char key[32], value[RENDEZVOUS_VALUE_MAX];
	t->status = join(t->s, t->rank, t->nranks, t->timeout, &g, &t->err);
	if (t->status && t->all)
		pthread_barrier_wait(t->all);
	if (t->status)
		return NULL;
	const gradcomp_store *st = rendezvous_store(g);
	snprintf(key, sizeof key, "endpoint/%d", t->rank);
	memset(value, t->rank, sizeof value);
	t->good = st->rank == t->rank && st->nranks == t->nranks &&
	          !st->set(st->ctx, key, value, t->bytes - (size_t)t->rank);
	for (int r = 0; t->good && r < t->nranks; r++) {
		snprintf(key, sizeof key, "endpoint/%d", r);
		long n = st->get(st->ctx, key, value, sizeof value, 20000);
		t->good = n == (long)t->bytes - r && value[0] == (char)r && value[n - 1] == (char)r;
	}
	if (t->all)
		pthread_barrier_wait(t->all);
	rendezvous_disconnect(g);
	return NULL;
}

static void start_all(task *t, const server *s, int rank, int nranks, double timeout, pthread_barrier_t *all)
{
	*t = (task){.s = s,
	            .rank = rank,
	            .nranks = nranks,
	            .timeout = timeout,
	            .bytes = nranks < MANY ? RENDEZVOUS_VALUE_MAX : 320,
	            .all = all};
	pthread_create(&t->thread, NULL, client, t);
}

static void start(task *t, const server *s, int rank, int nranks, double timeout)
{
	start_all(t, s, rank, nranks, timeout, NULL);
}

static void all_connect(void)
{
	static task t[CLIENTS];
	server s;
	int good = 0;
	is_int(begin(&s, CLIENTS), 0, "a server for %d", CLIENTS);
	for (int i = 0; i < CLIENTS; i++)
		start(&t[i], &s, i, CLIENTS, 60);
	for (int i = 0; i < CLIENTS; i++) {
		pthread_join(t[i].thread, NULL);
		good += t[i].good;
	}
	is_int(good, CLIENTS, "all get the values of all");
	end(&s, 0);
	is_int(s.status, GRADCOMP_OK, "and the server ends when they have left");
}

/* Three levels of clients: the server sends the list to the first 16 alone. */
static void many(void)
{
	static task t[MANY];
	server s;
	pthread_barrier_t all;
	int good = 0;
	double list = 0;
	pthread_barrier_init(&all, NULL, MANY);
	is_int(begin(&s, MANY), 0, "a server for %d", MANY);
	for (int i = MANY; i-- > 0;)
		start_all(&t[i], &s, i, MANY, 120, &all);
	for (int i = 0; i < MANY; i++) {
		pthread_join(t[i].thread, NULL);
		good += t[i].good;
		list += 3 * RENDEZVOUS_ENTRY_MIN + 32 + (double)t[i].bytes -
		        i; /* that it joined, its value, that it left */
	}
	is_int(good, MANY, "all get the values of all");
	pthread_barrier_destroy(&all);
	pthread_join(s.thread, NULL);
	double sent = (double)rendezvous_server_sent(s.server);
	printf("# the server sent %.0f lists\n", sent / list);
	/* 16, and what clients ask for whose relay has no processor time for seconds. */
	ok(sent < list * MANY / 2, "and the server has not sent them to each");
	close(s.until[0]);
	close(s.until[1]);
	rendezvous_server_close(s.server);
}

/* A client of 40 that offers to pass the list on, at a port where nobody answers. */
static int deaf_relay(const server *s, int rank, int listening, rendezvous_keys *k)
{
	unsigned char token[SECRET_BYTES], hello[RENDEZVOUS_HELLO_BYTES], in[CHALLENGE_BYTES], mac[SECRET_BYTES];
	unsigned char entry[RENDEZVOUS_ENTRY_MAX];
	struct sockaddr_in sa;
	socklen_t bytes = sizeof sa;
	char where[40], key[32], value[RENDEZVOUS_VALUE_MAX];
	int fd = connect_to(port_of(s));
	getsockname(listening, (struct sockaddr *)&sa, &bytes);
	text_unhex_sha256(rendezvous_server_token(s->server) + 6, token);
	rendezvous_keys_make(k, token);
	rendezvous_hello_write(&(rendezvous_hello){(uint32_t)rank, 40, (uint32_t)port_of(s), {7}}, hello);
	if (fd < 0 || write(fd, hello, sizeof hello) < 0 || recv(fd, in, sizeof in, MSG_WAITALL) != sizeof in)
		return -1;
	rendezvous_proof(k, ROLE_CONNECT, hello, in, mac);
	if (write(fd, mac, sizeof mac) < 0 || recv(fd, in, WELCOME_BYTES, MSG_WAITALL) != WELCOME_BYTES)
		return -1;
	/* NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage): getsockname has filled it */
	snprintf(where, sizeof where, "127.0.0.1/8@%d", ntohs(sa.sin_port));
	size_t n = rendezvous_entry_seal(k, (uint32_t)rank, RENDEZVOUS_RELAY, where, strlen(where), entry);
	(void)!write(fd, entry, n);
	snprintf(key, sizeof key, RENDEZVOUS_JOINED "%d", rank);
	n = rendezvous_entry_seal(k, (uint32_t)rank, key, "deaf", 4, entry);
	(void)!write(fd, entry, n);
	snprintf(key, sizeof key, "endpoint/%d", rank);
	memset(value, rank, sizeof value);
	n = rendezvous_entry_seal(k, (uint32_t)rank, key, value, sizeof value - (size_t)rank, entry);
	(void)!write(fd, entry, n);
	return fd;
}

static int listen_deaf(void)
{
	struct sockaddr_in sa = {.sin_family = AF_INET};
	int fd = socket(AF_INET, SOCK_STREAM, 0);
	sa.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	return fd < 0 || bind(fd, (struct sockaddr *)&sa, sizeof sa) || listen(fd, 64) ? -1 : fd;
}

static void relays_fail(void)
{
	static task t[40];
	rendezvous_keys k;
	server s;
	int good = 0, named = 0, port = listen_deaf();
	begin(&s, 40);
	for (int i = 1; i < 40; i++)
		start(&t[i], &s, i, 40, 60);
	int fd = deaf_relay(&s, 0, port, &k);
	ok(fd >= 0, "a node of 40 does not pass the list on");
	for (int i = 1; i < 40; i++) {
		pthread_join(t[i].thread, NULL);
		good += t[i].good;
	}
	is_int(good, 39, "the others have it all the same");
	close(fd);
	end(&s, 0);

	begin(&s, 40);
	fd = deaf_relay(&s, 1, port, &k);
	for (int i = 0; i < 39; i++)
		if (i != 1)
			start(&t[i], &s, i, 40, 60);
	(void)poll(NULL, 0, 500);
	close(fd);
	close(port); /* it dies, and node 39 is not there yet */
	for (int i = 0; i < 39; i++) {
		if (i == 1)
			continue;
		pthread_join(t[i].thread, NULL);
		named += t[i].status == GRADCOMP_ERR_PEER &&
		         strstr(t[i].err.text, "deaf (node 1 of the step) died") != NULL;
	}
	is_int(named, 38, "one that dies is named everywhere, by those behind it too");
	end(&s, 1);
}

static void unauthenticated(void)
{
	server s;
	rendezvous_client *g;
	gradcomp_error err;
	task t;
	int fd[300], n = 0;
	begin(&s, 2);
	/* 300 connections: some silent, some talk nonsense, some stop in the middle. */
	for (; n < 300 && (fd[n] = connect_to(port_of(&s))) >= 0; n++)
		if (n % 3)
			(void)!write(fd[n], "GET / HTTP/1.1\r\nHost: x\r\nUser-Agent: something long\r\n\r\n",
			             n % 3 == 1 ? 20 : 56);
	is_int(n, 300, "300 connections");
	char token[RENDEZVOUS_TOKEN_TEXT];
	snprintf(token, sizeof token, "plain=%064d", 7);
	rendezvous_client_options o = {.struct_size = sizeof o,
	                               .rank = 1,
	                               .nranks = 2,
	                               .timeout = 0.5,
	                               .where = rendezvous_server_where(s.server),
	                               .token = token};
	/* The error names the token once the server has answered. */
	gradcomp_status st;
	while ((st = rendezvous_connect(&o, &g, &err)) == GRADCOMP_ERR_IO && o.timeout < 32)
		o.timeout *= 2;
	is_int(st, GRADCOMP_ERR_AUTH, "another token is refused");
	like(err.text, "does not have the step's token", "and the error says so");
	o.nranks = 3;
	o.token = rendezvous_server_token(s.server);
	o.timeout = 0.5;
	o.rank = 2;
	is_int(rendezvous_connect(&o, &g, &err), GRADCOMP_ERR_IO, "so is a client of another step");
	start(&t, &s, 0, 2, 60);
	is_int(join(&s, 1, 2, 60, &g, &err), GRADCOMP_OK, "clients connect in spite of all that");
	const gradcomp_store *store = rendezvous_store(g);
	char big[RENDEZVOUS_VALUE_MAX + 1] = {0}, out[RENDEZVOUS_VALUE_MAX];
	is_int(store->set(store->ctx, "endpoint/1", big, sizeof big), -1, "a value that is too long is refused");
	is_int(store->set(store->ctx, "", big, 1), -1, "and a key without a byte");
	double from = clock_s();
	is_int(store->get(store->ctx, "nothing", out, sizeof out, 200), -1, "a key that nobody sets is not found");
	ok(clock_s() - from > 0.15 && clock_s() - from < 10, "and is waited for as long as said");
	memset(big, 1, sizeof big);
	is_int(store->set(store->ctx, "endpoint/1", big, RENDEZVOUS_VALUE_MAX - 1), 0, "a value");
	is_int(store->set(store->ctx, "endpoint/1", "other", 5), 0, "and another of the same key");
	pthread_join(t.thread, NULL);
	ok(t.good, "the first stays");
	rendezvous_disconnect(g);
	for (int i = 0; i < n; i++)
		close(fd[i]);
	end(&s, 0);
}

/* Opens a server as gradcomp rendezvous --detach does: what a process opened another one runs. */
static void detached(void)
{
	server s = {.until = {-1, -1}};
	rendezvous_client *g = NULL;
	gradcomp_error err = {0};
	int status = -1;
	ok(!rendezvous_server_open(NULL, 1, &s.server, &err) && !pipe(s.until), "a server: %s", err.text);
	publish(&s);
	pid_t pid = fork();
	if (!pid) {
		close(s.until[1]);
		_exit(rendezvous_server_run(s.server, s.until[0], NULL) != GRADCOMP_OK);
	}
	ok(!join(&s, 0, 1, 60, &g, &err), "runs in a process forked off: %s", err.text);
	rendezvous_disconnect(g);
	close(s.until[0]);
	close(s.until[1]);
	ok(waitpid(pid, &status, 0) == pid && !status, "which ends");
	rendezvous_server_close(s.server);
}

static void flooded(void)
{
	server s;
	task t;
	begin(&s, 2);
	start(&t, &s, 0, 2, 60);
	double until = clock_s() + 1;
	int tries = 0;
	while (clock_s() < until) {
		int fd = connect_to(port_of(&s));
		if (fd >= 0)
			close(fd);
		tries++;
	}
	rendezvous_client *g;
	gradcomp_error err;
	is_int(join(&s, 1, 2, 60, &g, &err), GRADCOMP_OK, "a client connects after %d other connections", tries);
	const gradcomp_store *st = rendezvous_store(g);
	char value[RENDEZVOUS_VALUE_MAX];
	memset(value, 1, sizeof value);
	st->set(st->ctx, "endpoint/1", value, sizeof value - 1);
	pthread_join(t.thread, NULL);
	ok(t.good, "and they exchange values");
	rendezvous_disconnect(g);
	end(&s, 0);
}

static void starved(void)
{
	server s;
	rendezvous_client *g;
	gradcomp_error err = {0};
	gradcomp_status st;
	begin(&s, 1);
	starving = 1; /* for the CHALLENGE: WELCOME has a limit of its own */
	st = join(&s, 0, 1, 60, &g, &err);
	starving = 0;
	ok(!st, "a client that gets no processor for seconds connects: status %d, %s", st, err.text);
	ok(starved_seconds >= 4, "that is what it got (%ld s)", starved_seconds);
	starved_seconds = 0;
	if (st) {
		end(&s, 1);
		return;
	}
	rendezvous_disconnect(g);
	end(&s, 0);
}

/* On a busy machine a client may be too late to connect at all, which is not tested here: then all
 * is done again with twice the time. */
#define FIRST_LIMIT 1
#define LAST_LIMIT 32

static void missing(void)
{
	server s;
	rendezvous_client *g;
	gradcomp_error err;
	gradcomp_status st;
	task t;
	char want[100];
	/* Client 2 waits longer than client 0, so that it is there when client 0 gives up. */
	for (int limit = FIRST_LIMIT;; limit *= 2) {
		begin(&s, 4);
		start(&t, &s, 2, 4, 2 * LAST_LIMIT);
		st = join(&s, 0, 4, limit, &g, &err);
		snprintf(want, sizeof want,
		         "2 of the step's 4 nodes did not connect within %d s "
		         "(stage.rendezvous_timeout): nodes 1, 3",
		         limit);
		int late = st == GRADCOMP_ERR_IO || (st == GRADCOMP_ERR_TIMEOUT && strstr(err.text, "nodes 0, 1,")) ||
		           (st == GRADCOMP_ERR_TIMEOUT && strstr(err.text, "nodes 1, 2, 3"));
		if (late)
			end(&s, 1);
		pthread_join(t.thread, NULL);
		if (late && limit < LAST_LIMIT)
			continue;
		is_int(st, GRADCOMP_ERR_TIMEOUT, "not all connect");
		like(err.text, want, "the missing ones are named");
		is_int(t.status, GRADCOMP_ERR_PEER, "on every node");
		if (!late)
			end(&s, 1);
		break;
	}

	for (int limit = FIRST_LIMIT;; limit *= 2) {
		begin(&s, 3);
		start(&t, &s, 0, 3, 2 * LAST_LIMIT);
		double from = clock_s();
		st = join(&s, 1, 3, 0.5 * limit, &g, &err);
		int late = st == GRADCOMP_ERR_IO;
		if (late)
			end(&s, 1);
		pthread_join(t.thread, NULL);
		if (late && limit < LAST_LIMIT)
			continue;
		is_int(st, GRADCOMP_ERR_TIMEOUT, "one of three gives up");
		is_int(t.status, GRADCOMP_ERR_PEER, "and the other does not wait for it");
		like(t.err.text, "(node 1 of the step) died before all nodes had connected", "but names it");
		ok(clock_s() - from < 0.5 * limit + LAST_LIMIT, "in time");
		if (!late)
			end(&s, 1);
		break;
	}

	for (int limit = FIRST_LIMIT;; limit *= 2) {
		begin(&s, 2);
		start(&t, &s, 0, 2, 10 * limit);
		(void)poll(NULL, 0, 300 * limit);
		end(&s, 1);
		pthread_join(t.thread, NULL);
		if (t.status == GRADCOMP_ERR_IO && limit < LAST_LIMIT)
			continue;
		ok(t.status == GRADCOMP_ERR_PEER, "srun ends: the client does not wait on");
		like(t.err.text, "srun has ended", "and the error says so");
		break;
	}
}

static int stop_now(void *ctx)
{
	return ++*(int *)ctx > 2;
}

static void bad_options(void)
{
	rendezvous_client *g;
	gradcomp_error err;
	int calls = 0;
	char plain[80];
	snprintf(plain, sizeof plain, "plain=%064d", 7);
	rendezvous_client_options o = {.struct_size = sizeof o, .rank = 0, .nranks = 2, .timeout = 0.3, .token = plain};
	static const char *const where[] = {"",    "x",          "1.2.3.4", "1.2.3.4/24@0", "1.2.3.4/24@99999",
	                                    ",,,", "::1/128@1,y"};

	for (size_t i = 0; i < sizeof where / sizeof *where; i++) {
		o.where = where[i];
		is_int(rendezvous_connect(&o, &g, &err), GRADCOMP_ERR_INVALID, "no address: '%s'", where[i]);
	}
	o.where = "127.0.0.1/8@1";
	is_int(rendezvous_connect(&o, &g, &err), GRADCOMP_ERR_IO, "nobody there");
	like(err.text, "cannot reach the rendezvous server of the step at 127.0.0.1:1", "says where");
	static const char *const token[] = {"", "plain=", "plain=zz", "munge=rubbish", "file:x"};
	for (size_t i = 0; i < sizeof token / sizeof *token; i++) {
		o.token = token[i];
		ok(rendezvous_connect(&o, &g, &err) < 0 && !g, "no token: '%s'", token[i]);
	}
	o.token = plain;
	o.timeout = 60;
	o.stop = stop_now;
	o.ctx = &calls;
	is_int(rendezvous_connect(&o, &g, &err), GRADCOMP_ERR_STATE, "stopped by its caller");
	o.nranks = 0;
	is_int(rendezvous_connect(&o, &g, &err), GRADCOMP_ERR_INVALID, "a step of no nodes");
	rendezvous_server *m;
	is_int(rendezvous_server_open(NULL, 0, &m, &err), GRADCOMP_ERR_INVALID, "no server for no clients");
	is_int(rendezvous_server_open(NULL, RENDEZVOUS_RANKS_MAX + 1, &m, &err), GRADCOMP_ERR_INVALID,
	       "nor for too many");
	const char *const range[] = {"stage.rendezvous_ports=60990-60999", NULL};
	if (rendezvous_server_open(range, 2, &m, &err) == 0) {
		int port = atoi(strchr(rendezvous_server_where(m), '@') + 1);
		ok(port >= 60990 && port <= 60999, "a port of the range: %d", port);
		rendezvous_server_close(m);
	} else {
		skip("none of them is free", "a port of the range");
	}
	static const char *const bad[] = {"stage.rendezvous_ports=7", "stage.rendezvous_ports=9-7",
	                                  "stage.rendezvous_ports=0-7", "stage.rendezvous_ports=1-70000",
	                                  "stage.rendezvous_ports=1-2x"};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		const char *const set[] = {bad[i], NULL};
		is_int(rendezvous_server_open(set, 2, &m, &err), GRADCOMP_ERR_INVALID, "%s", bad[i]);
	}
}

int main(void)
{
	setenv("GRADCOMP_SECURITY_SECRET", "pmix", 1);
	all_connect();
	many();
	relays_fail();
	unauthenticated();
	detached();
	flooded();
	starved();
	missing();
	bad_options();
	return done_testing();
}
