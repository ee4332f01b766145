/* rendezvous: the server by which the nodes of a step find each other (runtime/bootstrap/rendezvous.h), with so
 * many clients, which are threads of this process. Each sets a value as long as an endpoint record and gets
 * everybody's: how long that takes all of them, and what the server has sent.
 *
 *     rendezvous [--json FILE] [CLIENTS...]
 *
 * Without CLIENTS: 16 100 300 1000. Fails when a client has not got all. */
#include "bootstrap/rendezvous_msg.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define BYTES 200     /* an endpoint record has so many */
#define LIMIT 300     /* seconds */
#define STACK 262144u /* a client's thread has so much */

typedef struct crowd {
	rendezvous_server *server;
	int clients;
	pthread_barrier_t all; /* nobody leaves before all have all */
} crowd;

typedef struct member {
	crowd *of;
	int rank;
	bool good;
	gradcomp_error err;
	pthread_t thread;
} member;

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool exchange(const gradcomp_store *store, int rank, int clients)
{
	char key[32], value[RENDEZVOUS_VALUE_MAX];
	snprintf(key, sizeof key, "endpoint/%d", rank);
	memset(value, rank, sizeof value);
	if (store->set(store->ctx, key, value, BYTES))
		return false;
	for (int r = 0; r < clients; r++) {
		snprintf(key, sizeof key, "endpoint/%d", r);
		if (store->get(store->ctx, key, value, sizeof value, LIMIT * 1000) != BYTES || value[0] != (char)r)
			return false;
	}
	return true;
}

static void *client(void *arg)
{
	member *m = arg;
	rendezvous_client_options o = {.struct_size = sizeof o,
	                               .rank = m->rank,
	                               .nranks = m->of->clients,
	                               .timeout = LIMIT,
	                               .where = rendezvous_server_where(m->of->server),
	                               .token = rendezvous_server_token(m->of->server)};
	rendezvous_client *c = NULL;
	if (!rendezvous_connect(&o, &c, &m->err))
		m->good = exchange(rendezvous_store(c), m->rank, m->of->clients);
	pthread_barrier_wait(&m->of->all);
	if (c)
		rendezvous_disconnect(c);
	return NULL;
}

static void *serve(void *arg)
{
	int *fd = ((void **)arg)[1];
	(void)rendezvous_server_run(((void **)arg)[0], *fd, NULL);
	return NULL;
}

static int measure(int clients, FILE *json, int *rows)
{
	crowd of = {.clients = clients};
	member *m = calloc((size_t)clients, sizeof *m);
	gradcomp_error err = {0};
	pthread_attr_t small;
	pthread_t thread;
	int until[2], good = 0, started = 0;
	if (!m || pipe(until) || rendezvous_server_open(NULL, clients, &of.server, &err)) {
		fprintf(stderr, "rendezvous: no server for %d: %s\n", clients, err.text);
		exit(1);
	}
	void *served[] = {of.server, &until[0]};
	pthread_attr_init(&small);
	pthread_attr_setstacksize(&small, STACK);
	pthread_barrier_init(&of.all, NULL, (unsigned)clients + 1);
	double begin = now();
	bool ran = !pthread_create(&thread, NULL, serve, served);
	for (; ran && started < clients; started++) {
		m[started] = (member){.of = &of, .rank = started};
		if (pthread_create(&m[started].thread, &small, client, &m[started]))
			break;
	}
	if (started < clients) {
		fprintf(stderr, "rendezvous: %d threads cannot be started\n", clients);
		exit(1);
	}
	pthread_barrier_wait(&of.all);
	double took = now() - begin;
	for (int i = 0; i < clients; i++) {
		pthread_join(m[i].thread, NULL);
		if (!m[i].good && good == i)
			fprintf(stderr, "rendezvous: client %d of %d: %s\n", i, clients, m[i].err.text);
		good += m[i].good;
	}
	pthread_join(thread, NULL);
	double sent = (double)rendezvous_server_sent(of.server);
	/* A client's entries: that it joined, its value, that it left. */
	double list = (double)clients * (BYTES + 3.0 * RENDEZVOUS_ENTRY_MIN);
	printf("%6d clients: all have all after %.2f s; the server has sent %.0f bytes, about %.0f lists\n", clients,
	       took, sent, sent / list);
	fflush(stdout);
	if (json)
		fprintf(json, "%s {\"what\": \"rendezvous\", \"ranks\": %d, \"s\": %.6f, \"sent_bytes\": %.0f}",
		        (*rows)++ ? ",\n" : "", clients, took, sent);
	pthread_barrier_destroy(&of.all);
	pthread_attr_destroy(&small);
	close(until[0]);
	close(until[1]);
	rendezvous_server_close(of.server);
	free(m);
	return good != clients;
}

int main(int argc, char **argv)
{
	int clients[16] = {16, 100, 300, 1000}, n = 0, rows = 0, status = 0;
	FILE *json = NULL;
	for (int i = 1; i < argc; i++) {
		if (!strcmp(argv[i], "--json") && i + 1 < argc && !json) {
			if (!(json = fopen(argv[++i], "w")))
				return perror(argv[i]), 1;
		} else if (n < 16 && (clients[n] = atoi(argv[i])) > 0 && clients[n] <= RENDEZVOUS_RANKS_MAX) {
			n++;
		} else {
			fputs("usage: rendezvous [--json FILE] [CLIENTS...]\n", stderr);
			return 2;
		}
	}
	setenv("GRADCOMP_SECURITY_SECRET", "pmix", 1);
	if (json)
		fputs("[\n", json);
	for (int k = 0; k < (n ? n : 4); k++)
		status |= measure(clients[k], json, &rows);
	if (json && (fputs("\n]\n", json) < 0 || fclose(json)))
		status = 1;
	return status;
}
