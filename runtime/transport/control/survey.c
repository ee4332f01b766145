/* How fast the networks are that nodes have in common, where drivers do not say: a virtual interface, a switch that is
 * slower than its ports, a path that full-size packets do not pass. The lowest rank of each node sends to that of
 * the next node; control_tree.c takes the least of each network. */
#define _GNU_SOURCE
#include "transport/control/survey.h"

#include "transport/control/connect.h"
#include "transport/core/transport_internal.h"

#include <errno.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#define ANSWER_SECONDS 0.15 /* for all networks at once */
#define ANSWER_TRIES 3      /* the first packets may be lost where a network is just coming up */
#define SLICE_SECONDS 0.03  /* time for sending over one network, in a round */
#define ALL_SECONDS 0.5     /* time for sending over all of them, in all rounds */
#define ROUNDS_LEAST 2
#define MEASURE_TRIES 3 /* of all networks */
#define STEADY 1.1      /* another round, when one has found a network to be faster by more than that */
#define RATE_SLICES 4   /* slices of a network that is measured by itself */
/* part of a slice, in which what a shaper or a switch lets through at first passes */
#define WARM 0.3
#define UNACKED_BYTES (128 << 10) /* setsockopt() counts so: twice as many lie in the kernel */
#define SWALLOW_BYTES (1u << 20)
#define SWALLOW_TURNS 4

typedef struct probe {
	int network, fd; /* fd: -1 or a connection, */
	bool ready;      /* made or refused */
	const address *to;
	double rate; /* bit/s */
	uint64_t sent;
} probe;

bool survey_swallow(int fd)
{
	for (int i = 0; i < SWALLOW_TURNS; i++) {
		/* With this flag TCP forgets the bytes without copying them. */
		/* cppcheck-suppress nullPointer */
		ssize_t n = recv(fd, NULL, SWALLOW_BYTES, MSG_TRUNC | MSG_DONTWAIT);

		if (!n || (n < 0 && errno != EAGAIN && errno != EINTR))
			return false;
		if (n < 0)
			break;
	}
	return true;
}

/* Bytes that the other end's kernel has. */
static uint64_t probe_taken(const probe *p)
{
	int unacked = 0;
	return ioctl(p->fd, SIOCOUTQ, &unacked) || (uint64_t)unacked > p->sent ? 0 : p->sent - (uint64_t)unacked;
}

static void probe_slice(probe *p, double seconds)
{
	static const char zeros[64 << 10];
	double begin = clock_now(), warm = begin + WARM * seconds, end = begin + seconds, now = begin, from = 0;
	uint64_t first = 0;
	while (now < end) {
		ssize_t n = send(p->fd, zeros, sizeof zeros, MSG_NOSIGNAL | MSG_DONTWAIT);

		if (n > 0)
			p->sent += (uint64_t)n;
		else if (n < 0 && errno == EAGAIN)
			poll(&(struct pollfd){p->fd, POLLOUT, 0}, 1, 1);
		else if (n < 0 && errno != EINTR)
			break;
		now = clock_now();
		if (now >= warm && !(from > 0)) {
			from = now;
			first = probe_taken(p);
		}
	}
	if (from > 0 && now > from) {
		double rate = 8 * (double)(probe_taken(p) - first) / (now - from);

		p->rate = rate > p->rate ? rate : p->rate;
	}
}

/* Drops what has not been sent yet: it is not to stand in the way of what comes. */
static void probe_close(probe *p)
{
	setsockopt(p->fd, SOL_SOCKET, SO_LINGER, &(struct linger){1, 0}, sizeof(struct linger));
	close(p->fd);
}

/* An address of the peer in the network, where this rank has one, too. */
static const address *address_there(const transport *t, const endpoint *peer, int network)
{
	for (int i = 0; i < peer->naddr; i++) {
		if (network_of(&t->peers.networks, peer->addr, peer->naddr, i) != network)
			continue;
		for (int j = 0; j < t->sockets.nown; j++)
			if (address_in(&peer->addr[i], &t->sockets.own[j], t->sockets.own[j].prefix))
				return &peer->addr[i];
	}
	return NULL;
}

/* The networks in which both have addresses; how many. */
static int probes_find(const transport *t, const endpoint *peer, uint32_t *rate, probe *probes)
{
	int n = 0;
	for (int k = 0; k < t->peers.networks.n; k++) {
		const address *a = address_there(t, peer, k);

		rate[k] = a ? 0 : SURVEY_UNKNOWN;
		if (a)
			probes[n++] = (probe){.network = k, .to = a, .fd = -1};
	}
	return n;
}

/* Begins those that are not connected once more, and waits; how many are not connected then. */
static int probes_begin(transport *t, probe *probes, int n)
{
	double until = clock_now() + ANSWER_SECONDS;
	struct pollfd p[NETWORKS_MAX];
	int waiting = 0;
	for (int i = 0; i < n; i++) {
		probe *q = &probes[i];

		if (q->ready)
			continue;
		if (q->fd >= 0)
			close(q->fd);
		q->fd = connect_begin(q->to);
		if (q->fd >= 0)
			setsockopt(q->fd, SOL_SOCKET, SO_SNDBUF, &(int){UNACKED_BYTES}, sizeof(int));
		waiting++;
	}
	for (double now = clock_now(); waiting && now < until && !transport_failed(t); now = clock_now()) {
		for (int i = 0; i < n; i++)
			p[i] = (struct pollfd){probes[i].ready ? -1 : probes[i].fd, POLLOUT, 0};
		if (poll(p, (nfds_t)n, (int)((until - now) * 1e3) + 1) <= 0)
			break;
		for (int i = 0; i < n; i++)
			if (p[i].revents) {
				probes[i].ready = true;
				waiting--;
			}
	}
	return waiting;
}

/* Keeps those that are connected in time and belong to a rank of the job. */
static int probes_connect(transport *t, probe *probes, int n, int to, double deadline)
{
	int kept = 0;
	for (int tries = 0; tries < ANSWER_TRIES && probes_begin(t, probes, n); tries++)
		;
	for (int i = 0; i < n; i++) {
		hello h = {.kind = HELLO_PROBE,
		           .from = (uint32_t)t->rank,
		           .to = (uint32_t)to,
		           .nranks = (uint32_t)t->nranks,
		           .streams = 1,
		           .chunk = CHUNK_MIN,
		           .frames = (uint8_t)record_crypto_choose(t->o.frames, t->peers.endpoints[to].aes)};

		if (probes[i].ready && !connect_finish(t, probes[i].fd, &h, deadline))
			probes[kept++] = probes[i];
		else if (probes[i].fd >= 0)
			close(probes[i].fd);
	}
	return kept;
}

static int lowest_of_node(const transport *t, int node)
{
	int r = 0;
	while (t->peers.node[r] != node)
		r++;
	return r;
}

/* Measures all networks that this rank and another one are in; returns whether one of them has carried anything. */
static bool measure_once(transport *t, int to, uint32_t rate[NETWORKS_MAX], double deadline)
{
	probe probes[NETWORKS_MAX] = {{0}};
	bool steady = false, any = false;
	memset(rate, 0xff, NETWORKS_MAX * sizeof *rate);
	int n = probes_find(t, &t->peers.endpoints[to], rate, probes);
	if (!n)
		return true;
	n = probes_connect(t, probes, n, to, deadline);
	double slice =
		ROUNDS_LEAST * n * SLICE_SECONDS > ALL_SECONDS ? ALL_SECONDS / (ROUNDS_LEAST * n) : SLICE_SECONDS;
	/* Again, since neither this thread nor the other end's may have got a processor meanwhile: no rate is too
	 * high. */
	for (int round = 0; round < ROUNDS_LEAST || (!steady && (round + 1) * n * slice <= ALL_SECONDS); round++) {
		steady = true;
		for (int i = 0; i < n; i++) {
			double before = probes[i].rate;

			probe_slice(&probes[i], slice);
			steady &= probes[i].rate <= STEADY * before;
		}
	}
	for (int i = 0; i < n; i++) {
		double mbit = probes[i].rate / 1e6;

		rate[probes[i].network] = mbit < 1 ? mbit > 0 : mbit < 4e9 ? (uint32_t)mbit : SURVEY_UNKNOWN - 1;
		any |= mbit > 0;
		probe_close(&probes[i]);
	}
	return any;
}

void survey_measure(transport *t, uint32_t rate[NETWORKS_MAX], double deadline)
{
	int node = t->peers.node[t->rank], to = lowest_of_node(t, (node + 1) % t->peers.nnodes);
	memset(rate, 0xff, NETWORKS_MAX * sizeof *rate);
	if (lowest_of_node(t, node) != t->rank || to == t->rank)
		return;
	/* Where none carries anything, the other end did not get to answer: they are in a job by one of them. */
	for (int tries = 0; tries < MEASURE_TRIES && !measure_once(t, to, rate, deadline); tries++)
		;
}

gradcomp_status transport_rate(transport *t, int rank, double seconds, double *mbit, gradcomp_error *err)
{
	hello h = {.kind = HELLO_PROBE, .to = (uint32_t)rank, .streams = 1, .chunk = CHUNK_MIN};
	probe p = {.fd = -1};
	gradcomp_status st = connect_peer(t, &h, -1, clock_now() + t->o.timeout, &p.fd, err);
	if (st)
		return st;
	setsockopt(p.fd, SOL_SOCKET, SO_SNDBUF, &(int){UNACKED_BYTES}, sizeof(int));
	for (double end = clock_now() + seconds; clock_now() < end;)
		probe_slice(&p, seconds / RATE_SLICES);
	/* One that is slower than a packet takes. */
	*mbit = p.rate > 0 ? p.rate / 1e6 : probe_taken(&p) ? 1e-3 : 0;
	probe_close(&p);
	return GRADCOMP_OK;
}

static bool better(const network_row *a, const network_row *b)
{
	uint32_t x = a->measured ? a->rate : a->claimed, y = b->measured ? b->rate : b->claimed;
	return !*a->interface == !*b->interface ? x > y : *a->interface;
}

int transport_networks(const transport *t, network_row out[NETWORKS_MAX])
{
	int n = t->peers.networks.n;
	for (int k = 0, j; k < n; k++) {
		const network *net = &t->peers.networks.of[k];
		network_row row = {.claimed = net->claimed, .rate = net->rate, .measured = t->peers.networks.measured};
		char name[ADDRESS_TEXT];

		network_name(net, name);
		snprintf(row.name, sizeof row.name, "%.63s", name);
		for (int i = 0; i < t->sockets.nown && !*row.interface; i++)
			if (address_in(&t->sockets.own[i], &net->net, net->net.prefix) &&
			    !if_indextoname(t->sockets.own[i].interface, row.interface))
				row.interface[0] = '\0';
		for (j = k; j > 0 && better(&row, &out[j - 1]); j--)
			out[j] = out[j - 1];
		out[j] = row;
	}
	if (n)
		/* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult): the loop has filled it */
		out[0].chosen = *out[0].interface != '\0';
	return n;
}

/* Writes "10.2.0.0/24 (eth1) at 25000 Mbit/s". */
static size_t row_text(const network_row *r, char *out, size_t room)
{
	int n = snprintf(out, room, "%s%s%s%s", r->name, *r->interface ? " (" : "", r->interface,
	                 *r->interface ? ")" : "");
	if (n < 0 || (size_t)n >= room)
		return room;
	if (r->measured && !r->rate)
		return (size_t)n + (size_t)snprintf(out + n, room - (size_t)n, " carries nothing");
	if (r->measured || r->claimed)
		return (size_t)n +
		       (size_t)snprintf(out + n, room - (size_t)n, " at %u Mbit/s", r->measured ? r->rate : r->claimed);
	return (size_t)n;
}

#define NETWORKS_LOGGED 4

void survey_log(const transport *t)
{
	network_row rows[NETWORKS_MAX];
	char text[NETWORKS_LOGGED * 140] = "";
	size_t used = 0;
	int n = transport_networks(t, rows);
	if (t->rank || n < 2 || !t->o.log || !rows[0].chosen)
		return;
	used = row_text(&rows[0], text, sizeof text);
	for (int k = 1; k < n && k < NETWORKS_LOGGED && used + 2 < sizeof text; k++) {
		memcpy(text + used, ", ", 3);
		used += 2 + row_text(&rows[k], text + used + 2, sizeof text - used - 2);
	}
	log_line(t->o.log, GRADCOMP_LOG_INFO, "of %d networks the first is used, %s: %s%s", n,
	         rows[0].measured ? "by what was measured" : "by what the drivers say", text,
	         n > NETWORKS_LOGGED ? ", ..." : "");
}
