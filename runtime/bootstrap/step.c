/* Bootstrap of the tasks that have a PMIx server: a step of Slurm, or what mpirun starts. They may join
 * as often as they like, in one process or in programs one after another, and each a number of times of its own.
 *
 * So nothing that a join leaves behind may be taken for a part of the next. PMIx is asked for one text, which
 * is the same for as long as the step lasts: where rank 0 can be found, and the step's token. In each join rank 0
 * opens a rendezvous server there, and the others knock until it is open and has proved the token. The
 * records go through that server, and end with it.
 *
 * Rank 0 keeps the text in the folder that PMIx has for the step on its node, because a program does not always
 * find in PMIx what an earlier one has put there; and each process keeps it, so that PMIx is asked once. */
#define _GNU_SOURCE
#include "bootstrap/bootstrap.h"

#include "base/clock.h"
#include "base/error.h"
#include "base/module.h"
#include "base/sha256.h"
#include "base/thread.h"
#include "bootstrap/pmix_module.h"
#include "bootstrap/rendezvous.h"
#include "security/secret.h"
#include "transport/wire/address.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PORTS 4             /* rank 0 takes the first of them that is free */
#define KNOCK_MS 20         /* between two attempts, of rank 0 at its ports, of others at PMIx */
#define SLICE_MS 100        /* to wait for a record before it is asked why none comes */
#define NAMED 4             /* ranks in a message */
#define NAME_SECONDS 1.0    /* to find out where they are */
#define UNHEARD_SECONDS 0.5 /* for others to read why a join failed */
#define CLOSE_SECONDS 2.0   /* for PMIx to let go */
#define RANK_NAME 100
#define PLACE_MOST (128 + ADDRESS_LIST_TEXT)

#define REFUSED "gradcomp/refused" /* the text of the first rank that refuses */
#define FAILED "gradcomp/failed"   /* why the first rank gave up */

/* Where rank 0 is found: "1 TOKEN PORT,PORT,PORT,PORT ADDRESS,ADDRESS", the addresses as in an endpoint record. */
typedef struct place {
	unsigned char token[SECRET_BYTES];
	uint16_t ports[PORTS + 1];
	char where[PLACE_MOST];
} place;

typedef struct step {
	const pmix_module *pmix;
	bool pmix_open, failed;
	double timeout, deadline;
	int rank, nranks;
	place at;
	rendezvous_server *server; /* rank 0's; else NULL */
	pthread_t thread;
	int until[2], ended[2]; /* closed to end the server; at its end when it has */
	rendezvous_client *client;
} step;

/* Keeps what this process knows of its step. */
static struct {
	pthread_mutex_t lock;
	char who[160]; /* namespace and rank */
	int rank, nranks;
	char text[PLACE_MOST]; /* the place as text; "": not known */
} known = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void who_am_i(char out[sizeof known.who])
{
	const char *space = getenv("PMIX_NAMESPACE"), *rank = getenv("PMIX_RANK");
	snprintf(out, sizeof known.who, "%.120s %.20s", space ? space : "", rank ? rank : "");
}

static bool recall(int *rank, int *nranks, char text[PLACE_MOST])
{
	char who[sizeof known.who];
	who_am_i(who);
	pthread_mutex_lock(&known.lock);
	bool found = known.text[0] && !strcmp(who, known.who);
	if (found) {
		*rank = known.rank;
		*nranks = known.nranks;
		memcpy(text, known.text, PLACE_MOST);
	}
	pthread_mutex_unlock(&known.lock);
	return found;
}

static void remember(const step *s, const char *text)
{
	pthread_mutex_lock(&known.lock);
	who_am_i(known.who);
	known.rank = s->rank;
	known.nranks = s->nranks;
	snprintf(known.text, sizeof known.text, "%s", text);
	pthread_mutex_unlock(&known.lock);
}

static gradcomp_status place_read(const char *text, place *p, gradcomp_error *err)
{
	char hex[2 * SECRET_BYTES + 1];
	unsigned port[PORTS];
	int n = 0;
	bool good = sscanf(text, "1 %64s %5u,%5u,%5u,%5u %n", hex, &port[0], &port[1], &port[2], &port[3], &n) ==
	                    1 + PORTS &&
	            n && text_unhex_sha256(hex, p->token) && strlen(text + n) < sizeof p->where;
	for (int i = 0; good && i < PORTS; i++) {
		p->ports[i] = (uint16_t)port[i];
		good = port[i] > 0 && port[i] < 65536;
	}
	secret_wipe(hex, sizeof hex);
	if (!good)
		return error_set(err, GRADCOMP_ERR_INVALID,
		                 "pmix: what rank 0 says of where the ranks meet is malformed: use one version of "
		                 "gradcomp");
	p->ports[PORTS] = 0;
	snprintf(p->where, sizeof p->where, "%s", text + n);
	return GRADCOMP_OK;
}

/* A new one; the ports are free now. */
static gradcomp_status place_write(char text[PLACE_MOST], gradcomp_error *err)
{
	unsigned char token[SECRET_BYTES];
	char hex[2 * SECRET_BYTES + 1], where[ADDRESS_LIST_TEXT];
	uint16_t port[PORTS] = {0};
	int fd[PORTS];
	gradcomp_status st = secret_random(token, sizeof token, err);
	for (int i = 0; i < PORTS; i++) {
		fd[i] = address_listen("", &port[i]);
		if (fd[i] < 0 && !st)
			st = error_errno(err, GRADCOMP_ERR_IO, "pmix: cannot listen for the other ranks");
	}
	for (int i = 0; i < PORTS; i++)
		if (fd[i] >= 0)
			close(fd[i]);
	if (!st)
		st = address_own_text(port[0], where, err);
	if (!st) {
		sha256_hex(token, hex);
		snprintf(text, PLACE_MOST, "1 %s %u,%u,%u,%u %s", hex, port[0], port[1], port[2], port[3], where);
	}
	secret_wipe(token, sizeof token);
	secret_wipe(hex, sizeof hex);
	return st;
}

/* Returns the path of rank 0's note, in the folder that PMIx's server has for the step, which nobody else can read. */
static bool keep_path(char path[PATH_MAX])
{
	const char *dir = getenv("PMIX_SERVER_TMPDIR"), *space = getenv("PMIX_NAMESPACE");
	struct stat st;
	if (!dir || !space || strchr(space, '/') || snprintf(path, PATH_MAX, "%s/gradcomp.%s", dir, space) >= PATH_MAX)
		return false;
	return !stat(dir, &st) && S_ISDIR(st.st_mode) && st.st_uid == geteuid() && !(st.st_mode & (S_IWGRP | S_IWOTH));
}

static bool kept_read(char text[PLACE_MOST])
{
	char path[PATH_MAX];
	struct stat st;
	ssize_t n = -1;
	int fd = keep_path(path) ? open(path, O_RDONLY | O_NOFOLLOW | O_CLOEXEC) : -1;
	if (fd < 0)
		return false;
	if (!fstat(fd, &st) && S_ISREG(st.st_mode) && st.st_uid == geteuid())
		n = read(fd, text, PLACE_MOST - 1);
	close(fd);
	text[n > 0 ? n : 0] = 0;
	return n > 0;
}

/* Where it cannot be kept, PMIx is asked. */
static void kept_write(const char *text)
{
	char path[PATH_MAX], draft[PATH_MAX + 16];
	size_t bytes = strlen(text);
	if (!keep_path(path))
		return;
	snprintf(draft, sizeof draft, "%s.%d", path, (int)getpid());
	int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
	if (fd < 0)
		return;
	bool written = write(fd, text, bytes) == (ssize_t)bytes;
	if (close(fd) || !written || rename(draft, path))
		(void)unlink(draft);
}

static double left(const step *s)
{
	double seconds = s->deadline - clock_now();
	return seconds > 0 ? seconds : 0;
}

/* Writes "rank 3 on n4". */
static void rank_name(step *s, int r, double until, char out[RANK_NAME])
{
	char host[PMIX_HOST_MAX] = "";
	double limit = until - clock_now();
	int rank, nranks;
	gradcomp_error none;
	if (!s->pmix_open && limit > 0)
		s->pmix_open = !s->pmix->open(limit, &rank, &nranks, &none);
	limit = until - clock_now();
	if (s->pmix_open && limit > 0)
		s->pmix->host(r, limit, host);
	snprintf(out, RANK_NAME, *host ? "rank %d on %s" : "rank %d", r, host);
}

/* Reports the ranks from whom nothing came. */
static gradcomp_status not_joined(step *s, const int *ranks, int n, const char *why, gradcomp_error *err)
{
	char list[NAMED * RANK_NAME] = "", name[RANK_NAME];
	double until = clock_now() + NAME_SECONDS;
	size_t used = 0;
	for (int i = 0; i < n && i < NAMED; i++) {
		rank_name(s, ranks[i], until, name);
		used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", name);
	}
	return error_set(err, GRADCOMP_ERR_TIMEOUT,
	                 "pmix: %s%s did not join within %.0f s (of %d ranks)%s; every task of the step must join "
	                 "the job",
	                 list, n > NAMED ? ", ..." : "", s->timeout, s->nranks, why);
}

/* Rank 0's: the step's, or a new one when there is none yet. A program that has kept it may have died before it was
 * published, so each publishes it. */
static gradcomp_status own_place(step *s, char text[PLACE_MOST], gradcomp_error *err)
{
	char *found = NULL;
	gradcomp_status st = GRADCOMP_OK;
	if (!kept_read(text)) {
		if (!s->pmix->lookup(0, false, left(s), &found))
			snprintf(text, PLACE_MOST, "%s", found);
		else
			st = place_write(text, err);
		if (!st)
			kept_write(text);
		free(found);
	}
	return st ? st : s->pmix->publish(text, left(s) + 1, err);
}

static gradcomp_status rank0_place(step *s, char text[PLACE_MOST], gradcomp_error *err)
{
	static const int rank0[] = {0};
	char *found = NULL;
	while (s->pmix->lookup(0, true, left(s), &found)) {
		if (left(s) < KNOCK_MS * 1e-3)
			return not_joined(s, rank0, 1, "", err);
		(void)poll(NULL, 0, KNOCK_MS);
	}
	snprintf(text, PLACE_MOST, "%s", found);
	secret_wipe(found, strlen(found));
	free(found);
	return GRADCOMP_OK;
}

static gradcomp_status find_place(step *s, gradcomp_error *err)
{
	char text[PLACE_MOST];
	int rank, nranks;
	gradcomp_status st = GRADCOMP_OK;
	bool recalled = recall(&rank, &nranks, text);
	if (!recalled)
		st = s->rank ? rank0_place(s, text, err) : own_place(s, text, err);
	if (!st)
		st = place_read(text, &s->at, err);
	if (!st && !recalled)
		remember(s, text);
	secret_wipe(text, sizeof text);
	return st;
}

static void *serve(void *arg)
{
	step *s = arg;
	(void)rendezvous_server_run(s->server, s->until[0], NULL);
	close(s->ended[1]);
	return NULL;
}

/* The ports may be in use for a moment, by connections of others. */
static int listen_at(const step *s)
{
	char range[16];
	uint16_t port;
	for (;;) {
		for (int i = 0; i < PORTS; i++) {
			snprintf(range, sizeof range, "%u-%u", s->at.ports[i], s->at.ports[i]);
			int fd = address_listen(range, &port);
			if (fd >= 0)
				return fd;
		}
		if (left(s) < KNOCK_MS * 1e-3)
			return -1;
		(void)poll(NULL, 0, KNOCK_MS);
	}
}

static gradcomp_status open_server(step *s, gradcomp_error *err)
{
	int fd = listen_at(s);
	if (fd < 0)
		return error_errno(err, GRADCOMP_ERR_IO,
		                   "pmix: cannot listen for the other ranks at port %u, nor at three more",
		                   s->at.ports[0]);
	gradcomp_status st = rendezvous_server_open_at(fd, s->at.token, s->nranks, &s->server, err);
	if (st)
		return st;
	if (pipe2(s->until, O_CLOEXEC) || pipe2(s->ended, O_CLOEXEC) || thread_start(&s->thread, serve, s)) {
		for (int i = 0; i < 2; i++) {
			if (s->until[i] >= 0)
				close(s->until[i]);
			if (s->ended[i] >= 0)
				close(s->ended[i]);
		}
		rendezvous_server_close(s->server);
		s->server = NULL;
		return error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no thread for the other ranks");
	}
	return GRADCOMP_OK;
}

/* Others may still read what it has. */
static void close_server(step *s)
{
	double limit = s->failed ? UNHEARD_SECONDS : left(s);
	if (!s->server)
		return;
	(void)poll(&(struct pollfd){.fd = s->ended[0]}, 1, (int)(limit * 1e3));
	close(s->until[1]);
	pthread_join(s->thread, NULL);
	close(s->until[0]);
	close(s->ended[0]);
	rendezvous_server_close(s->server);
}

static gradcomp_status open_step(void **ctx, const config *c, const gradcomp_store *store, int *rank, int *nranks,
                                 gradcomp_error *err)
{
	char text[PLACE_MOST];
	const void *symbol;
	gradcomp_status st;
	(void)store;
	step *s = calloc(1, sizeof *s);
	if (!s)
		return error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
	s->until[0] = s->until[1] = s->ended[0] = s->ended[1] = -1;
	st = module_symbol(config_str(c, SET_GRADCOMP_PLUGIN_PATH), "bootstrap/pmix.so", PMIX_MODULE_SYMBOL, &symbol,
	                   err);
	if (!st)
		s->pmix = symbol;
	if (!st && (s->pmix->version != PMIX_MODULE_VERSION || s->pmix->struct_size != sizeof *s->pmix))
		st = error_set(err, GRADCOMP_ERR_ABI,
		               "bootstrap: the PMIx module is version %u, this library wants %u: install both from "
		               "one build",
		               s->pmix->version, PMIX_MODULE_VERSION);
	if (!st && !recall(&s->rank, &s->nranks, text)) {
		st = s->pmix->open(config_float(c, SET_TRANSPORT_TIMEOUT), &s->rank, &s->nranks, err);
		s->pmix_open = !st;
	}
	secret_wipe(text, sizeof text);
	if (st) {
		free(s);
		return st;
	}
	*rank = s->rank;
	*nranks = s->nranks;
	*ctx = s;
	return GRADCOMP_OK;
}

static const char *record_key(int r, char key[40])
{
	snprintf(key, 40, "gradcomp/%d", r);
	return key;
}

static long take(const gradcomp_store *store, const char *key, char value[BOOTSTRAP_MAX], int ms)
{
	long n = store->get(store->ctx, key, value, BOOTSTRAP_MAX - 1, ms);
	value[n < 0 ? 0 : n < BOOTSTRAP_MAX ? n : BOOTSTRAP_MAX - 1] = 0;
	return n;
}

/* Rank r's record has not come yet. OK: go on waiting. */
static gradcomp_status why_not(step *s, int r, const char *key, char value[BOOTSTRAP_MAX], gradcomp_error *err)
{
	const gradcomp_store *store = rendezvous_store(s->client);
	char other[40];
	int *missing, n = 0;
	gradcomp_status st;
	if (take(store, FAILED, value, 0) >= 0)
		return error_set(err, GRADCOMP_ERR_TIMEOUT, "%s", value);
	if (*rendezvous_why(s->client) && take(store, key, value, 0) < 0)
		return error_set(err, GRADCOMP_ERR_PEER, "pmix: %s", rendezvous_why(s->client));
	if (left(s) > 0)
		return GRADCOMP_OK;
	missing = malloc((size_t)s->nranks * sizeof *missing);
	if (!missing)
		return error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
	for (; r < s->nranks; r++)
		if (take(store, record_key(r, other), value, 0) < 0)
			missing[n++] = r;
	st = not_joined(s, missing, n, "", err);
	free(missing);
	/* All say the same, and not that this rank has gone. */
	(void)store->set(store->ctx, FAILED, err->text, strlen(err->text));
	return st;
}

/* A refusal counts more than that another rank is missing. */
static gradcomp_status gather(step *s, char **all, gradcomp_error *err)
{
	const gradcomp_store *store = rendezvous_store(s->client);
	char key[40], value[BOOTSTRAP_MAX];
	gradcomp_status st = GRADCOMP_OK;
	for (int r = 0; !st && r < s->nranks;) {
		int to = r;
		if (take(store, record_key(r, key), value, SLICE_MS) < 0) {
			if (take(store, REFUSED, value, 0) < 0) {
				st = why_not(s, r, key, value, err);
				continue;
			}
			to = atoi(value + 1);
			to = to >= 0 && to < s->nranks ? to : r;
		}
		free(all[to]);
		all[to] = strdup(value);
		if (!all[to])
			st = error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
		else if (all[to][0] == BOOTSTRAP_REFUSAL)
			break;
		r++;
	}
	secret_wipe(value, sizeof value);
	return st;
}

static gradcomp_status meet(step *s, const char *mine, char **all, gradcomp_error *err)
{
	rendezvous_client_options who = {.struct_size = sizeof who,
	                                 .where = s->at.where,
	                                 .secret = s->at.token,
	                                 .ports = s->at.ports,
	                                 .rank = s->rank,
	                                 .nranks = s->nranks,
	                                 .timeout = left(s)};
	char key[40], why[sizeof err->text];
	static const int rank0[] = {0};
	gradcomp_status st = rendezvous_connect(&who, &s->client, err);
	if (st == GRADCOMP_ERR_IO || st == GRADCOMP_ERR_AUTH) {
		snprintf(why, sizeof why, ": %.300s", err->text);
		return not_joined(s, rank0, 1, why, err);
	}
	if (st)
		return st;
	const gradcomp_store *store = rendezvous_store(s->client);
	if (store->set(store->ctx, record_key(s->rank, key), mine, strlen(mine)))
		return error_set(err, GRADCOMP_ERR_IO, "pmix: rank 0 does not read");
	if (mine[0] != BOOTSTRAP_REFUSAL)
		return gather(s, all, err);
	(void)store->set(store->ctx, REFUSED, mine, strlen(mine));
	all[s->rank] = strdup(mine);
	return all[s->rank] ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
}

static gradcomp_status exchange(void *ctx, const char *mine, double timeout, char **all, gradcomp_error *err)
{
	step *s = ctx;
	gradcomp_status st = GRADCOMP_OK;
	if (s->nranks == 1) {
		all[0] = strdup(mine);
		return all[0] ? GRADCOMP_OK : error_set(err, GRADCOMP_ERR_NOMEM, "pmix: no memory");
	}
	s->timeout = timeout;
	s->deadline = clock_now() + timeout;
	st = find_place(s, err);
	if (!st && s->rank == 0)
		st = open_server(s, err);
	if (!st)
		st = meet(s, mine, all, err);
	s->failed = st != GRADCOMP_OK;
	return st;
}

static void heard(void *ctx, double limit)
{
	step *s = ctx;
	if (s->client)
		rendezvous_leave(s->client, limit);
	s->failed = true;
}

static void close_step(void *ctx)
{
	step *s = ctx;
	rendezvous_disconnect(s->client);
	close_server(s);
	if (s->pmix_open)
		s->pmix->close(CLOSE_SECONDS);
	secret_wipe(&s->at, sizeof s->at);
	free(s);
}

const bootstrap_method bootstrap_step = {
	.name = "pmix", .open = open_step, .exchange = exchange, .heard = heard, .close = close_step};
