/* Machines with several networks: namespaces that a switch connects, itself one. A layout says what there is, and
 * which network a job must take. */
#ifndef TESTS_SUPPORT_NETWORK_LAYOUTS_H
#define TESTS_SUPPORT_NETWORK_LAYOUTS_H

#include "tests/support/netns.h"
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"

#include <sys/prctl.h>

#define LAYOUT_NETS 4
#define TIMED_TRIES 4
#define LAYOUT_RANKS 3
#define LAYOUT_MESSAGE ((size_t)1 << 20)

typedef struct layout_net {
	const char *name;      /* name of the interface on every machine; NULL: there is no such network */
	const char *v4, *v6;   /* addresses with %d for the machine; NULL: none */
	int mbit;              /* shaped to that; 0: not at all */
	bool apart;            /* no cable: every machine has its own */
	bool black;            /* packets of full size are lost */
	const char *elsewhere; /* the interface's name on machine 2, if it is another one there */
	bool but_last;         /* the last machine is not on it */
} layout_net;

typedef struct layout {
	const char *what;
	int machines;
	const char *before; /* shell, on each machine, before interfaces are made; %d: the machine */
	layout_net net[LAYOUT_NETS];
	const char *after;
	const char *interface; /* the setting */
	int best;              /* the network that is to be taken */
	int often;             /* messages; 0: 24 */
} layout;

/* n bridges with lower indexes than cables have: the same address on each machine, or one of its own (%d). */
#define BRIDGES(n, host, up) \
	"for i in $(seq 1 " #n "); do ip link add br$i type bridge; ip addr add 172.18.$i." host \
	"/24 dev br$i; ip link set br$i up; " up " done"
#define CONTAINER \
	"ip link add c$i type veth peer name d$i; ip link set d$i up; ip link set c$i up; ip link set c$i master br$i;"

static const layout layouts[] = {
	{.what = "two networks, the first is slow",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000}}},
	{.what = "thirteen bridges with lower indexes, as docker-compose makes them",
         .machines = 2,
         .before = BRIDGES(13, "1", ""),
         .net = {{.name = "eth0", .v4 = "10.1.0.%d/24"}}},
	{.what = "forty bridges with containers, each machine has its own address in their networks",
         .machines = 2,
         .before = BRIDGES(40, "%d", CONTAINER),
         .net = {{.name = "eth0", .v4 = "10.1.0.%d/24"}}},
	{.what = "IPv6 alone, two networks",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", NULL, "fd01::%d/64", .mbit = 100}, {"eth1", NULL, "fd02::%d/64", .mbit = 1000}}},
	{.what = "three networks, the fastest between the others",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100},
                 {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000},
                 {"eth2", "10.3.0.%d/24", NULL, .mbit = 300}}},
	{.what = "a network that loses packets of full size beside one that does not",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .black = true}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 500}}},
	{.what = "three machines, two networks",
         .machines = 3,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000}}},
	/* Those above are the short form. */
	{.what = "one network", .machines = 2, .net = {{"eth0", "10.1.0.%d/24", "fd01::%d/64", .mbit = 1000}}},
	{.what = "two networks, the first is fast",
         .machines = 2,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 1000}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 100}}},
	{.what = "three networks, the fastest last",
         .machines = 2,
         .best = 2,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100},
                 {"eth1", "10.2.0.%d/24", NULL, .mbit = 200},
                 {"eth2", "10.3.0.%d/24", NULL, .mbit = 800}}},
	{.what = "forty bridges, all with one address, and two networks",
         .machines = 2,
         .best = 1,
         .before = BRIDGES(40, "1", CONTAINER),
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000}}},
	{.what = "a hundred bridges",
         .machines = 2,
         .before = BRIDGES(100, "1", ""),
         .net = {{.name = "eth0", .v4 = "10.1.0.%d/24"}}},
	{.what = "IPv6 alone, forty bridges",
         .machines = 2,
         .before =
                 "for i in $(seq 1 40); do ip link add br$i type bridge; ip addr add fd99:$i::1/64 dev br$i nodad; ip link set br$i up; done",
         .net = {{.name = "eth0", .v6 = "fd01::%d/64"}}},
	{.what = "the slow network has IPv4, the fast one IPv6 alone",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100}, {"eth1", NULL, "fd02::%d/64", .mbit = 1000}}},
	{.what = "the default route leads through the slow network",
         .machines = 2,
         .best = 1,
         .after = "ip route add default via 10.1.0.99",
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000}}},
	{.what = "the first network is not connected",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .apart = true}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 500}}},
	{.what = "interfaces are called otherwise on the other machine",
         .machines = 2,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100, .elsewhere = "eth1"},
                 {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000, .elsewhere = "eth0"}}},
	{.what = "several addresses on the slow interface",
         .machines = 2,
         .best = 1,
         .after = "for i in $(seq 1 20); do ip addr add 10.1.$i.%1$d/24 dev eth0; done",
         .net = {{"eth0", "10.1.0.%d/24", "fd01::%d/64", .mbit = 100}, {"eth1", "10.2.0.%d/24", NULL, .mbit = 1000}}},
	{.what = "a block in transport.interface that thirteen addresses match, the last alone is connected",
         .machines = 2,
         .interface = "10.0.0.0/8",
         .net = {{"eth0", "10.99.0.%d/24", NULL, .mbit = 500}},
         .before =
                 "for i in $(seq 1 12); do ip link add br$i type bridge; ip addr add 10.18.$i.1/24 dev br$i; ip link set br$i up; done"},
	{.what = "three machines, and a slow network that two of them have",
         .machines = 3,
         .best = 1,
         .net = {{"eth0", "10.1.0.%d/24", NULL, .mbit = 100, .but_last = true},
                 {"eth1", "10.2.0.%d/24", NULL, .mbit = 300}}},
};
#define LAYOUTS ((int)(sizeof layouts / sizeof *layouts))
#define LAYOUTS_SHORT 7

static struct layout_seen {
	uint64_t all, best[LAYOUT_RANKS]; /* bytes received */
	double formed[LAYOUT_RANKS], took[LAYOUT_RANKS], begun;
} * layout_seen;
static const layout *layout_now;
static const log_sink layout_log = {GRADCOMP_LOG_INFO, 0};

static inline const char *layout_name(const layout_net *n, int k)
{
	return k == 1 && n->elsewhere ? n->elsewhere : n->name;
}

static inline bool layout_has(const layout *l, const layout_net *n, int k)
{
	return n->name && !(n->but_last && k == l->machines - 1);
}

/* Shapes the end of a cable. */
static inline int layout_shape(const layout_net *n, const char *device)
{
	return n->mbit ? shell("tc qdisc add dev %s root tbf rate %dmbit burst 256kb latency 50ms", device, n->mbit)
	               : 0;
}

static inline int layout_cable(const layout *l, int i, int k)
{
	const layout_net *n = &l->net[i];
	const char *name = layout_name(n, k);
	char port[16], address[2][60] = {"", ""};
	int rc;
	snprintf(port, sizeof port, "p%d-%d", i, k);
	if (n->apart)
		rc = setns(machine[k], CLONE_NEWNET) ||
		     shell("ip link add %s type veth peer name far%d && ip link set far%d up", name, i, i);
	else
		rc = machines_wire(l->machines, port, k, name) ||
		     shell("ip link set %s master sw%d && ip link set %s up", port, i, port) || layout_shape(n, port) ||
		     setns(machine[k], CLONE_NEWNET);
	/* The larger MTU is at the ends; what does not fit through the switch is gone, without a word. */
	if (!rc && n->black)
		rc = shell("ip link set %s mtu 9000 gso_max_segs 1", name);
	for (int v = 0; v < 2 && !rc; v++) {
		const char *form = v ? n->v6 : n->v4;

		if (form) {
			char line[100];

			snprintf(line, sizeof line, "ip addr add %s dev %%s%s", form, v ? " nodad" : "");
			snprintf(address[v], sizeof address[v], line, k + 1, name);
			rc = shell("%s", address[v]);
		}
	}
	return rc || shell("ip link set %s up", name) || layout_shape(n, name);
}

/* NULL, or why it cannot be made. */
static inline const char *layout_make(const layout *l)
{
	for (int k = 0; k < MACHINES_MAX; k++) {
		if (machine[k] > 0)
			close(machine[k]);
		machine[k] = -1;
	}
	const char *why = machines_new(l->machines + 1);
	char line[600];

	if (why)
		return why;
	for (int k = 0; k < l->machines; k++) {
		snprintf(line, sizeof line, l->before ? l->before : "true", k + 1);
		if (in_machine(k, "ip link set lo up && sysctl -qw net.ipv6.conf.default.accept_dad=0") ||
		    shell("%s", line))
			return "bridges cannot be made";
	}
	for (int i = 0; i < LAYOUT_NETS && l->net[i].name; i++) {
		if (setns(machine[l->machines], CLONE_NEWNET) ||
		    shell("ip link add sw%d type bridge && ip link set sw%d up", i, i))
			return "there is no bridge";
		for (int k = 0; k < l->machines; k++)
			if (layout_has(l, &l->net[i], k) && layout_cable(l, i, k))
				return "the machines cannot be wired";
	}
	for (int k = 0; k < l->machines && l->after; k++) {
		snprintf(line, sizeof line, l->after, k + 1);
		if (in_machine(k, line))
			return "routes cannot be made";
	}
	return NULL;
}

static inline uint64_t layout_received(const char *name)
{
	char line[300], key[20];
	uint64_t bytes = 0;
	FILE *f = fopen("/proc/self/net/dev", "re");
	snprintf(key, sizeof key, " %s:", name);
	while (f && fgets(line, sizeof line, f))
		if (strstr(line, key))
			bytes = strtoull(strstr(line, key) + strlen(key), NULL, 10);
	if (f)
		fclose(f);
	return bytes;
}

static inline void layout_enter(int rank)
{
	char name[20];
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	snprintf(name, sizeof name, "m%d", rank + 1);
	if (setns(machine[rank], CLONE_NEWNET) || unshare(CLONE_NEWUTS) || sethostname(name, strlen(name)))
		_exit(1);
}

static inline void layout_body(board *b, transport *t, int rank)
{
	const layout *l = layout_now;
	const char *name = layout_name(&l->net[l->best], rank);
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *links = channel_links(c);
	char *out = calloc(1, LAYOUT_MESSAGE), *in = calloc(1, LAYOUT_MESSAGE);
	int often = l->often ? l->often : 24, right = (rank + 1) % b->n, left = (rank + b->n - 1) % b->n;
	uint64_t before;
	double begin;
	layout_seen->formed[rank] = board_now() - layout_seen->begun;
	board_exchange(b);
	before = layout_received(name);
	begin = board_now();
	for (int i = 0; i < often && !b->status[rank]; i++) {
		gradcomp_request s, r;

		b->status[rank] = links->recv(links->ctx, left, in, LAYOUT_MESSAGE, &r, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = links->send(links->ctx, right, out, LAYOUT_MESSAGE, &s, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = links->wait(links->ctx, &r, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = links->wait(links->ctx, &s, &b->error[rank]);
	}
	layout_seen->took[rank] = board_now() - begin;
	layout_seen->best[rank] = layout_received(name) - before;
	channel_close(c);
	free(out);
	free(in);
}

/* Seconds that the messages took; -1: they did not come. */
static inline double layout_job(const layout *l, const char *interface)
{
	board *b = board_new(l->machines);
	double most = 0;
	memset(layout_seen, 0, sizeof *layout_seen);
	layout_now = l;
	layout_seen->begun = board_now();
	b->options.interface = interface;
	b->options.log = &layout_log;
	b->enter = layout_enter;
	b->body = layout_body;
	board_fork(b);
	board_join(b);
	if (!board_well(b))
		most = -1;
	for (int r = 0; r < b->n && most >= 0; r++)
		most = layout_seen->took[r] > most ? layout_seen->took[r] : most;
	board_free(b);
	return most;
}

/* Checks that the job takes the best network. With `timed` it is also as fast as with that network named, within 5
 * %. */
static inline void layout_try(const layout *l, bool timed)
{
	const char *why = layout_make(l);
	double took, named, formed = 0;
	uint64_t bytes = (uint64_t)(l->often ? l->often : 24) * LAYOUT_MESSAGE, least = UINT64_MAX;
	if (why) {
		skip(why, "%s", l->what);
		return;
	}
	took = layout_job(l, l->interface ? l->interface : "");
	for (int r = 0; r < l->machines; r++) {
		formed = layout_seen->formed[r] > formed ? layout_seen->formed[r] : formed;
		least = layout_seen->best[r] < least ? layout_seen->best[r] : least;
	}
	printf("# %s: formed in %.2f s, %.1f MB in %.3f s, %.1f %% of them over the best network\n", l->what, formed,
	       (double)bytes / 1e6, took, 100 * (double)least / (double)bytes);
	ok(took >= 0, "%s: a job forms", l->what);
	ok(in_time(formed, 3), "in 3 s");
	ok((double)least >= 0.95 * (double)bytes, "and takes %s", l->net[l->best].name);
	if (!timed || took < 0 || !l->net[l->best].mbit)
		return;
	const char *form = l->net[l->best].v4 ? l->net[l->best].v4 : l->net[l->best].v6;
	char block[60];

	snprintf(block, sizeof block, form, 0);
	named = layout_job(l, block);
	/* Other work of the machine may make one of them slower. */
	for (int tries = 1; tries < TIMED_TRIES && took >= 1.05 * named; tries++) {
		double again = layout_job(l, l->interface ? l->interface : "");

		took = again >= 0 && again < took ? again : took;
	}
	ok(named > 0 && took < 1.05 * named + 0.01, "as fast as with transport.interface=%s: %.3f s to %.3f s", block,
	   took, named);
}

/* Layouts from..to-1. */
static inline int layouts_try(int from, int to, bool timed)
{
	layout_seen = mmap(NULL, sizeof *layout_seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (layout_seen == MAP_FAILED)
		return 1;
	for (int k = 0; k < MACHINES_MAX; k++)
		machine[k] = -1;
	const char *why = layout_make(&layouts[0]);
	if (why)
		skip(why, "machines with several networks");
	for (int i = from; i < to && !why; i++)
		layout_try(&layouts[i], timed);
	munmap(layout_seen, sizeof *layout_seen);
	return done_testing();
}

#endif
