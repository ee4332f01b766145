/* transport: latency and bandwidth of a link between two ranks, and the time a
 * small all-to-all takes, straight on the transport.
 *
 *     transport [-a shm|tcp] [-c yes|no] [-n RANKS] [-s STREAMS] [-k CHUNK]
 *               [-u SPIN_US] [-w NETNS,NETNS] [-b BYTES] [-i ITERATIONS]
 *               [-f none|mac|encrypt]
 *
 * Ranks are processes; with -w each enters a network namespace of
 * /var/run/netns, in turn. Prints one line a size: bytes, half the round trip
 * in us, MB/s one way, all medians over repetitions. */
#define _GNU_SOURCE
#include "transport/core/transport.h"

#include "base/error.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define RANKS_MAX 64
#define REPEATS 9

typedef struct board {
	atomic_int there;
	unsigned char secret[TRANSPORT_SECRET_BYTES];
	char endpoint[RANKS_MAX][TRANSPORT_ENDPOINT_MAX];
} board;

static transport_options options = {.nranks = 2,
                                    .timeout = 10,
                                    .wait_timeout = 60,
                                    .streams = 2,
                                    .chunk = 256 << 10,
                                    .spin_us = 50,
                                    .interface = "",
                                    .allow = "shm,tcp"};
static size_t only_bytes;
static int only_iterations;
static char *spaces;

static double now(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + 1e-9 * (double)ts.tv_nsec;
}

static void must(gradcomp_status st, const gradcomp_error *err)
{
	if (!st)
		return;
	fprintf(stderr, "transport: %s\n", err->text);
	_exit(1);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static void ping_pong(const gradcomp_links *l, unsigned char *buf, size_t bytes, int iterations)
{
	double took[REPEATS];
	gradcomp_request rq;
	gradcomp_error err;
	for (int k = -1; k < REPEATS; k++) {
		double begin = now();

		for (int i = 0; i < iterations; i++) {
			for (int half = 0; half < 2; half++) {
				must(half == l->rank ? l->send(l->ctx, !l->rank, buf, bytes, &rq, &err)
				                     : l->recv(l->ctx, !l->rank, buf, bytes, &rq, &err),
				     &err);
				must(l->wait(l->ctx, &rq, &err), &err);
			}
		}
		if (k >= 0)
			took[k] = (now() - begin) / iterations / 2;
	}
	qsort(took, REPEATS, sizeof *took, by_value);
	if (!l->rank)
		printf("%10zu %10.2f us %10.0f MB/s\n", bytes, 1e6 * took[REPEATS / 2],
		       (double)bytes / took[REPEATS / 2] / 1e6);
	fflush(stdout);
}

/* Does what a ring does: everybody sends to the right and receives from the left. */
static void shift(const gradcomp_links *l, unsigned char *out, unsigned char *in, size_t bytes, int iterations)
{
	double took[REPEATS];
	gradcomp_request s, r;
	gradcomp_error err;
	int right = (l->rank + 1) % l->nranks, left = (l->rank + l->nranks - 1) % l->nranks;
	for (int k = -1; k < REPEATS; k++) {
		double begin = now();

		for (int i = 0; i < iterations; i++) {
			must(l->recv(l->ctx, left, in, bytes, &r, &err), &err);
			must(l->send(l->ctx, right, out, bytes, &s, &err), &err);
			must(l->wait(l->ctx, &r, &err), &err);
			must(l->wait(l->ctx, &s, &err), &err);
		}
		if (k >= 0)
			took[k] = (now() - begin) / iterations;
	}
	qsort(took, REPEATS, sizeof *took, by_value);
	if (!l->rank)
		printf("%10zu %10.2f us %10.0f MB/s a rank, shift of %d\n", bytes, 1e6 * took[REPEATS / 2],
		       (double)bytes / took[REPEATS / 2] / 1e6, l->nranks);
	fflush(stdout);
}

static void enter(int rank)
{
	char path[128], *name = spaces ? strtok(spaces, ",") : NULL;
	int fd;
	for (int i = 0; i < rank && name; i++)
		name = strtok(NULL, ",");
	if (!name)
		return;
	snprintf(path, sizeof path, "/var/run/netns/%s", name);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET)) {
		perror(path);
		_exit(1);
	}
	close(fd);
}

static void rank_main(board *b, int rank)
{
	static const size_t sizes[] = {0, 1024, 16 << 10, 256 << 10, 1 << 20, 64 << 20};
	const char *endpoints[RANKS_MAX];
	int ranks[RANKS_MAX];
	log_sink log = {GRADCOMP_LOG_WARN, rank};
	gradcomp_error err;
	transport *t;
	channel *c;
	unsigned char *buf, *in;
	enter(rank);
	options.rank = rank;
	options.log = &log;
	must(transport_listen(&options, &t, &err), &err);
	strcpy(b->endpoint[rank], transport_endpoint(t));
	atomic_fetch_add(&b->there, 1);
	while (atomic_load(&b->there) < options.nranks)
		usleep(100);
	for (int r = 0; r < options.nranks; r++) {
		endpoints[r] = b->endpoint[r];
		ranks[r] = r;
	}
	must(transport_start(t, endpoints, b->secret, &err), &err);
	must(channel_open(t, 1, ranks, options.nranks, rank, &c, &err), &err);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		size_t bytes = only_bytes ? only_bytes : sizes[i];
		int n = only_iterations ? only_iterations : bytes < 1 << 18 ? 2000 : bytes < 1 << 24 ? 100 : 4;

		buf = malloc(bytes + 1);
		in = malloc(bytes + 1);
		memset(buf, 1, bytes + 1);
		memset(in, 1, bytes + 1);
		if (options.nranks == 2)
			ping_pong(channel_links(c), buf, bytes, n);
		shift(channel_links(c), buf, in, bytes, n);
		free(buf);
		free(in);
		if (only_bytes)
			break;
	}
	channel_close(c);
	must(transport_stop(t, &err), &err);
	_exit(0);
}

int main(int argc, char **argv)
{
	board *b = mmap(NULL, sizeof *b, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	int opt, status, bad = 0;
	while ((opt = getopt(argc, argv, "a:c:n:s:k:u:w:b:i:f:")) != -1)
		switch (opt) {
		case 'a':
			options.allow = optarg;
			break;
		case 'f':
			options.frames = *optarg == 'm' ? FRAMES_MAC : *optarg == 'e' ? FRAMES_ENCRYPT : FRAMES_NONE;
			break;
		case 'c':
			options.cma = !strcmp(optarg, "yes");
			break;
		case 'n':
			options.nranks = atoi(optarg);
			break;
		case 's':
			options.streams = atoi(optarg);
			break;
		case 'k':
			options.chunk = (size_t)atol(optarg);
			break;
		case 'u':
			options.spin_us = atoi(optarg);
			break;
		case 'w':
			spaces = optarg;
			break;
		case 'b':
			only_bytes = (size_t)atol(optarg);
			break;
		case 'i':
			only_iterations = atoi(optarg);
			break;
		default:
			return 2;
		}
	if (b == MAP_FAILED || options.nranks < 2 || options.nranks > RANKS_MAX)
		return 2;
	gradcomp_error err;
	must(transport_secret(b->secret, &err), &err);
	for (int r = 0; r < options.nranks; r++)
		if (!fork())
			rank_main(b, r);
	while (wait(&status) > 0)
		bad |= status;
	return bad != 0;
}
