/* Bytes arrive where, when and as they should, over every kind of link, or over those
 * whose names begin with the argument. */
#include "tests/support/transport_ranks.h"

#include "tests/support/fake_fabric.h"

#include "operators/operator_tables.h"

#define SIZES 6
static const size_t sizes[SIZES] = {0, 1, 7, 4097, 200000, (1 << 20) + 3};

static unsigned char byte_at(int from, int to, int k, size_t i)
{
	return (unsigned char)(from * 31 + to * 17 + k * 7 + i + (i >> 8) * 3 + (i >> 16) * 5);
}

static void fill(unsigned char *p, size_t n, int from, int to, int k)
{
	for (size_t i = 0; i < n; i++)
		p[i] = byte_at(from, to, k, i);
}

static void check(board *b, const unsigned char *p, size_t n, int from, int to, int k)
{
	for (size_t i = 0; i < n; i++)
		if (p[i] != byte_at(from, to, k, i)) {
			atomic_fetch_add(&b->wrong, 1);
			return;
		}
}

/* Every pair, both ways at once, all sizes, everything posted before anything is
 * waited for, waited for in another order, and two rounds of it. */
static void all_pairs(board *b, transport *t, int rank)
{
	enum { ROUNDS = 2, MANY = BOARD_RANKS * SIZES };
	channel *c = board_channel(b, t, rank, 5);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request *rq = calloc(2 * MANY, sizeof *rq);
	unsigned char *out[MANY] = {0}, *in[MANY] = {0};

	for (int round = 0; round < ROUNDS && !b->status[rank]; round++) {
		for (int p = 0; p < b->n; p++)
			for (int k = 0; k < SIZES && p != rank && !b->status[rank]; k++) {
				/* Another order for each pair, the same on its two sides. */
				int turned = (k + p + rank) % SIZES, j = p * SIZES + turned;

				out[j] = malloc(sizes[turned] + 1);
				in[j] = calloc(1, sizes[turned] + 1);
				in[j][sizes[turned]] = 0x5a;
				fill(out[j], sizes[turned], rank, p, turned);
				b->status[rank] = l->send(l->ctx, p, out[j], sizes[turned], &rq[j], &b->error[rank]);
				if (!b->status[rank])
					b->status[rank] = l->recv(l->ctx, p, in[j], sizes[turned], &rq[MANY + j],
					                          &b->error[rank]);
			}
		for (int j = b->n * SIZES - 1; j >= 0 && !b->status[rank]; j--) {
			if (j / SIZES == rank)
				continue;
			b->status[rank] = l->wait(l->ctx, &rq[MANY + j], &b->error[rank]);
			if (!b->status[rank])
				b->status[rank] = l->wait(l->ctx, &rq[j], &b->error[rank]);
			if (!b->status[rank])
				b->status[rank] = l->wait(l->ctx, &rq[j], &b->error[rank]);
			check(b, in[j], sizes[j % SIZES], j / SIZES, rank, j % SIZES);
			if (in[j][sizes[j % SIZES]] != 0x5a)
				atomic_fetch_add(&b->wrong, 1);
		}
		for (int j = 0; j < MANY; j++) {
			free(out[j]);
			free(in[j]);
			out[j] = in[j] = NULL;
		}
	}
	channel_close(c);
	free(rq);
}

/* acc += what comes, piece by piece, for a type that does not divide a piece
 * evenly and a length that ends within one. */
static void reducing(board *b, transport *t, int rank)
{
	static const size_t counts[] = {0, 1, 3, 1000, 16384, 100003};
	channel *c = board_channel(b, t, rank, 6);
	const gradcomp_links *l = channel_links(c);
	int right = (rank + 1) % b->n, left = (rank + b->n - 1) % b->n;
	for (size_t k = 0; k < sizeof counts / sizeof *counts && !b->status[rank]; k++) {
		size_t n = counts[k];
		int64_t *out = malloc((n + 1) * 8), *acc = malloc((n + 1) * 8);
		gradcomp_request s, r;

		for (size_t i = 0; i < n; i++) {
			out[i] = (int64_t)i * (rank + 1);
			acc[i] = 1000000 + (int64_t)i;
		}
		acc[n] = 77;
		b->status[rank] = l->recv_reduce(l->ctx, left, acc, n, GRADCOMP_I64, GRADCOMP_SUM, &r, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->send(l->ctx, right, out, n * 8, &s, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &s, &b->error[rank]);
		for (size_t i = 0; i < n && !b->status[rank]; i++)
			if (acc[i] != 1000000 + (int64_t)i * (left + 2)) {
				atomic_fetch_add(&b->wrong, 1);
				break;
			}
		if (acc[n] != 77)
			atomic_fetch_add(&b->wrong, 1);
		free(out);
		free(acc);
	}
	if (l->recv_reduce(l->ctx, left, &right, 1, GRADCOMP_F32, GRADCOMP_BOR, &(gradcomp_request){0}, NULL) !=
	    GRADCOMP_ERR_UNSUPPORTED)
		atomic_fetch_add(&b->wrong, 1);
	channel_close(c);
}

/* test() alone brings a transfer to its end; channels may open at different
 * times, close, and open again under the same id; two work side by side. */
static void channels(board *b, transport *t, int rank)
{
	int peer = !rank, done = 0;
	unsigned x = 100 + (unsigned)rank, y = 0;
	for (int again = 0; again < 3 && !b->status[rank]; again++) {
		int ranks[2] = {0, 1};
		gradcomp_request s, r, s2, r2;
		unsigned other = 0;
		channel *c, *d;

		if (rank == (again & 1))
			usleep(20000);
		channel_open(t, 9, ranks, 2, rank, &c, NULL);
		const gradcomp_links *l = channel_links(c);
		b->status[rank] = l->send(l->ctx, peer, &x, sizeof x, &s, &b->error[rank]);
		if (rank != (again & 1))
			usleep(20000);
		channel_open(t, 10, ranks, 2, rank, &d, NULL);
		const gradcomp_links *m = channel_links(d);
		m->send(m->ctx, peer, &again, sizeof again, &s2, &b->error[rank]);
		m->recv(m->ctx, peer, &other, sizeof other, &r2, &b->error[rank]);
		l->recv(l->ctx, peer, &y, sizeof y, &r, &b->error[rank]);
		for (done = 0; !done && !b->status[rank]; usleep(100))
			b->status[rank] = l->test(l->ctx, &r, &done, &b->error[rank]);
		l->wait(l->ctx, &s, NULL);
		m->wait(m->ctx, &r2, NULL);
		m->wait(m->ctx, &s2, NULL);
		if (y != 100 + (unsigned)peer || other != (unsigned)again)
			atomic_fetch_add(&b->wrong, 1);
		channel_close(c);
		channel_close(d);
	}
}

static void properties(board *b, transport *t, int rank)
{
	int nnodes;
	const int32_t *node = transport_nodes(t, &nnodes);
	channel *c = board_channel(b, t, rank, 1);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request rq;
	transport_counts counts[4];
	if (nnodes != 1 || node[0] || node[b->n - 1] || l->rank != rank || l->nranks != b->n || l->nnodes != 1)
		atomic_fetch_add(&b->wrong, 1);
	if (l->send(l->ctx, rank, &rq, 1, &rq, NULL) != GRADCOMP_ERR_INVALID ||
	    l->send(l->ctx, b->n, &rq, 1, &rq, NULL) != GRADCOMP_ERR_INVALID ||
	    l->recv(l->ctx, -1, &rq, 1, &rq, NULL) != GRADCOMP_ERR_INVALID)
		atomic_fetch_add(&b->wrong, 1);
	if (b->n == 2) {
		char x[100] = {0};

		if (rank)
			l->send(l->ctx, 0, x, 100, &rq, NULL);
		else
			l->recv(l->ctx, 1, x, 100, &rq, NULL);
		l->wait(l->ctx, &rq, NULL);
		if (transport_stats(t, counts) != 1 || strcmp(counts[0].transport, "shm") || counts[0].pairs != 1 ||
		    counts[0].sent != (rank ? 100u : 0u) || counts[0].received != (rank ? 0u : 100u))
			atomic_fetch_add(&b->wrong, 1);
		if (strcmp(transport_kind(t, !rank), "shm"))
			atomic_fetch_add(&b->wrong, 1);
	}
	channel_close(c);
}

static void run(const char *name, board *b, void (*body)(board *, transport *, int), int processes)
{
	b->body = body;
	if (processes) {
		board_fork(b);
		board_join(b);
	} else {
		board_threads(b);
	}
	ok(board_well(b) && !atomic_load(&b->wrong), "%s, %d %s", name, b->n, processes ? "processes" : "threads");
	board_free(b);
}

static const struct kind {
	const char *name, *allow, *interface;
	int cma, streams, spin_us, fake, real;
	zerocopy_mode zerocopy;
	size_t lockable;
} kinds[] = {
	{"shm", "shm", "", 1, 1, .spin_us = 20},
	{"shm without reading each other's memory", "shm,tcp", "", 0, 1, .spin_us = 0},
	{"tcp, 1 stream", "tcp", "", 1, 1, .spin_us = 20},
	{"tcp, 3 streams", "tcp", "", 1, 3, .spin_us = 0},
	{"tcp, zero-copy", "tcp", "", 1, 1, .spin_us = 0, .zerocopy = ZEROCOPY_YES},
	{"tcp, 2 streams, zero-copy", "tcp", "", 1, 2, .spin_us = 20, .zerocopy = ZEROCOPY_YES},
	{"tcp, loopback by name", "tcp", "lo", 1, 2, .spin_us = 0},
	{"tcp, IPv6 loopback", "tcp", "::1/128", 1, 2, .spin_us = 20},
	{"verbs", "tcp,verbs", "", 1, 1, 20, .fake = 1},
	{"verbs, asleep", "verbs", "", 1, 1, 0, .fake = 1},
	{"verbs, some memory", "tcp,verbs", "", 1, 1, 20, .fake = 1, .lockable = 10 << 20},
	{"verbs, little memory", "tcp,verbs", "", 1, 1, 0, .fake = 1, .lockable = 5 << 20},
	{"verbs, a device", "verbs", "", 1, 1, 20, .real = 1},
};

int main(int argc, char **argv)
{
	gradcomp_operators table = *operators_cpu();
	const fabric_ops *device = real_fabric();
	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		static const int n[] = {2, 5};

		if (argc > 1 && strncmp(kinds[k].name, argv[1], strlen(argv[1])))
			continue;
		if (kinds[k].real && !device) {
			skip("no RDMA device here", "%s", kinds[k].name);
			continue;
		}
		if (strstr(kinds[k].name, "IPv6") && access("/proc/net/if_inet6", F_OK)) {
			skip("no IPv6 here", "%s", kinds[k].name);
			continue;
		}
		for (int i = 0; i < 2; i++)
			/* The fake device knows one process only. */
			for (int processes = 0; processes < 2 - kinds[k].fake; processes++)
				for (int what = 0; what < 2; what++) {
					char name[100];
					board *b = board_new(n[i]);

					b->options.allow = kinds[k].allow;
					b->options.interface = kinds[k].interface;
					b->options.cma = kinds[k].cma;
					b->options.streams = kinds[k].streams;
					b->options.spin_us = kinds[k].spin_us;
					b->options.zerocopy = kinds[k].zerocopy;
					b->options.operators = &table;
					b->options.fabric = kinds[k].fake   ? &fake_fabric
					                    : kinds[k].real ? device
					                                    : NULL;
					fake.lockable = kinds[k].lockable;
					snprintf(name, sizeof name, "%s, %s", what ? "reducing" : "all pairs",
					         kinds[k].name);
					run(name, b, what ? reducing : all_pairs, processes);
				}
	}
	/* The rank that connects decides, so ranks need not agree. */
	for (int what = 0; what < 2 && argc == 1; what++) {
		static const int streams[] = {16, 1, 3, 16, 7};
		board *b = board_new(5);

		b->options.allow = "tcp";
		b->options.operators = &table;
		memcpy(b->streams, streams, sizeof streams);
		run(what ? "reducing, unequal streams" : "all pairs, unequal streams", b, what ? reducing : all_pairs,
		    1);
	}
	for (int tcp = 0; tcp < 2 && argc == 1; tcp++) {
		board *b = board_new(2);

		b->options.allow = tcp ? "tcp" : "shm";
		run(tcp ? "channels, tcp" : "channels, shm", b, channels, tcp);
	}
	if (argc > 1)
		return done_testing();
	run("properties", board_new(1), properties, 0);
	run("properties", board_new(2), properties, 0);
	run("properties", board_new(3), properties, 1);
	return done_testing();
}
