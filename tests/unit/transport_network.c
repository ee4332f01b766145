/* Two machines, each a network namespace with two cables to the other one and a
 * bridge that has the same address on both. The namespaces have no names: they
 * are gone with the last process in them, however the test ends. */
#define _GNU_SOURCE
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"

#include "tests/support/netns.h"

#include <sys/prctl.h>

#define RANKS 4 /* 0 and 1 on the left machine, 2 and 3 on the right one */
#define MESSAGE_BYTES ((size_t)4 << 20)

/* Keeps what each rank has seen, where the test can read it. */
static struct seen {
	int nodes, well, links;
	char kind[RANKS][8];
	uint64_t one, two; /* bytes received over either cable */
} * seen;

static void enter(int rank)
{
	const char *name = rank < RANKS / 2 ? "left" : "right";
	/* Nobody is left behind, and no namespace, when the test is killed. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setns(machine[rank >= RANKS / 2], CLONE_NEWNET) || unshare(CLONE_NEWUTS) || sethostname(name, strlen(name)))
		_exit(1);
}

/* NULL, or why there can be no such machines here. */
static const char *machines_make(void)
{
	static const char up[] =
		"ip link set lo up && ip link add bridge type bridge && ip addr add 172.31.0.1/16 dev bridge &&"
		"ip link set bridge up && ip link set one up && ip link set two up &&"
		"ip addr add 10.77.1.%d/24 dev one && ip addr add fd77:1::%d/64 dev one nodad &&"
		"ip addr add 10.77.2.%d/24 dev two && ip addr add fd77:2::%d/64 dev two nodad &&"
		/* A cable that has nothing but link-local addresses. */
		"ip link set three addrgenmode none && ip link set three up && ip addr add fe80::%d/64 dev three nodad";
	char command[sizeof up + 20];
	const char *why = machines_new(2);
	if (why)
		return why;
	if (machines_wire(1, "one", 0, "one") || machines_wire(1, "two", 0, "two") ||
	    machines_wire(1, "three", 0, "three"))
		return "this machine has no veth";
	for (int k = 0; k < 2; k++) {
		snprintf(command, sizeof command, up, k + 1, k + 1, k + 1, k + 1, k + 1);
		if (in_machine(k, command))
			return "the two machines cannot be wired";
	}
	return NULL;
}

/* Bytes an interface of this process's namespace has received. */
static uint64_t received(const char *name)
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

static gradcomp_status shift(board *b, const gradcomp_links *l, int rank, char *out, char *in)
{
	int right = (rank + 1) % b->n, left = (rank + b->n - 1) % b->n;
	gradcomp_request s, r;
	gradcomp_status st = l->recv(l->ctx, left, in, MESSAGE_BYTES, &r, &b->error[rank]);
	if (!st)
		st = l->send(l->ctx, right, out, MESSAGE_BYTES, &s, &b->error[rank]);
	if (!st)
		st = l->wait(l->ctx, &r, &b->error[rank]);
	if (!st)
		st = l->wait(l->ctx, &s, &b->error[rank]);
	return st;
}

/* A few messages round the ring, or, when b->arg is set, messages until something
 * goes wrong. */
static void body(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char *out = malloc(MESSAGE_BYTES), *in = malloc(MESSAGE_BYTES);
	int left = (rank + b->n - 1) % b->n;
	struct seen *mine = &seen[rank];
	link_map_row row[4];
	memset(out, 'a' + rank, MESSAGE_BYTES);
	transport_nodes(t, &mine->nodes);
	for (int i = 0; i < b->n; i++)
		snprintf(mine->kind[i], sizeof mine->kind[i], "%s", transport_kind(t, i));
	mine->well = 1;
	mine->links = transport_link_map(t, row);
	mine->links =
		mine->links < 2
			? -1
			: (int)(100 * row[0].pairs + 10 * row[1].pairs) + !strcmp(transport_pair(t, 0, 1), "shm") +
				  !strcmp(transport_pair(t, 1, 2), "tcp") + !strcmp(transport_pair(t, 3, 2), "shm");
	mine->one = received("one");
	mine->two = received("two");
	board_exchange(b);
	for (int k = 0; !b->status[rank] && (b->arg || k < 3); k++) {
		memset(in, 0, MESSAGE_BYTES);
		b->status[rank] = shift(b, l, rank, out, in);
		if (!b->status[rank])
			mine->well &= in[0] == 'a' + left && !memcmp(in, in + 1, MESSAGE_BYTES - 1);
		if (k == 2)
			atomic_fetch_add(&b->late, 1);
	}
	b->when[rank] = board_now();
	mine->one = received("one") - mine->one;
	mine->two = received("two") - mine->two;
	channel_close(c);
	free(out);
	free(in);
}

static board *job(const char *interface, double timeout, int endless)
{
	board *b = board_new(RANKS);
	memset(seen, 0, RANKS * sizeof *seen);
	b->options.interface = interface;
	b->options.timeout = timeout;
	b->arg = endless ? b : NULL;
	b->enter = enter;
	b->body = body;
	board_fork(b);
	return b;
}

/* Ranks 0 and 2 receive from the other machine; cable 0 is any. */
static int all_seen(int cable)
{
	int good = 1;
	for (int r = 0; r < RANKS; r++) {
		const struct seen *s = &seen[r];
		uint64_t used = cable == 2 ? s->two : cable == 1 ? s->one : s->one + s->two;

		/* Two pairs over shm, four over tcp, and three pairs asked for singly. */
		good &= s->well && s->links == 243 && s->nodes == 2 && !strcmp(s->kind[r ^ 1], "shm") &&
		        !strcmp(s->kind[r ^ 2], "tcp") && !strcmp(s->kind[r ^ 3], "tcp") &&
		        (r % 2 || used >= 3 * MESSAGE_BYTES) && s->one + s->two - used < MESSAGE_BYTES / 16;
		printf("# rank %d: %s to 0, %s to 3, %llu bytes over one, %llu over two\n", r, s->kind[0], s->kind[3],
		       (unsigned long long)s->one, (unsigned long long)s->two);
	}
	return good;
}

/* The endpoint records of the left and of the right machine have so many addresses, all
 * of which begin with `first`. */
static int offers(const board *b, const char *first, int left, int right)
{
	for (int r = 0; r < b->n; r++) {
		const char *p = strstr(b->endpoint[r], " tcp=");
		int n = 0;

		while (p && (p = strpbrk(p, "=,"))) {
			n++;
			if (strncmp(++p, first, strlen(first)))
				return 0;
		}
		if (n != (r < RANKS / 2 ? left : right)) {
			printf("# rank %d: %s\n", r, b->endpoint[r]);
			return 0;
		}
	}
	return 1;
}

static void link_local(const char *interface)
{
	board *b = job(interface, 10, 0);
	board_join(b);
	ok(board_well(b), "interface=%s, whose addresses are link-local: all ranks come and go", interface);
	for (int r = 0; r < RANKS; r++)
		ok(seen[r].well && seen[r].links == 243, "rank %d heard the others", r);
	ok(offers(b, "fe80::", 1, 1), "the endpoint records have them");
	board_free(b);
}

/* Shared memory does not reach the other machine: all ranks say so, and where. */
static void out_of_reach(void)
{
	board *b = board_new(RANKS);
	b->options.allow = "shm";
	b->enter = enter;
	b->body = body;
	board_fork(b);
	board_join(b);
	for (int r = 0; r < RANKS; r++)
		is_int(b->started[r], GRADCOMP_ERR_UNSUPPORTED, "allow=shm: rank %d cannot start", r);
	like(b->start_error[0].text, "no transport connects rank 0 on left to rank 2 on right: transport.allow=shm",
	     "the message names both ends and the setting");
	like(b->start_error[3].text, "no transport connects rank 3 on right to rank 0 on left", "on both sides");
	board_free(b);
}

static void chosen(const char *interface, const char *first, int left, int right, int cable)
{
	board *b = job(interface, 10, 0);
	board_join(b);
	ok(board_well(b), "interface='%s': all ranks come and go", interface);
	ok(all_seen(cable), "shm within a machine, tcp between them%s", cable ? ", over the right cable" : "");
	ok(offers(b, first, left, right), "endpoint records have %d and %d addresses%s%s", left, right,
	   *first ? ", all of " : "", first);
	board_free(b);
}

/* The cable is pulled while messages are on it: nobody's connection closes, so it
 * is the silence that tells. */
static void pulled(void)
{
	board *b = job("10.77.1.0/24", 2, 1);
	double begin, until = board_now() + 20;
	while (atomic_load(&b->late) < b->n && board_now() < until)
		usleep(1000);
	is_int(atomic_load(&b->late), b->n, "messages are on the cable");
	begin = board_now();
	ok(!in_machine(0, "ip link set one down"), "it is pulled");
	board_join(b);
	for (int r = 0; r < b->n; r++) {
		char who[2][20];
		int there = r < RANKS / 2 ? RANKS / 2 : 0;

		for (int k = 0; k < 2; k++)
			snprintf(who[k], sizeof who[k], "rank %d on %s ", there + k, there ? "right" : "left");
		if (!ok(b->status[r] == GRADCOMP_ERR_TIMEOUT &&
		                in_time(b->when[r] - begin, b->options.timeout + LATE) &&
		                (!strncmp(b->error[r].text, who[0], strlen(who[0])) ||
		                 !strncmp(b->error[r].text, who[1], strlen(who[1]))),
		        "rank %d blames a rank at the other end, %.1f s later", r, b->when[r] - begin))
			printf("# %d: %s\n", b->status[r], b->error[r].text);
		ok(seen[r].well, "what came until then was right");
	}
	board_free(b);
}

int main(void)
{
	const char *why = machines_make();
	if (why) {
		skip(why, "two machines with two cables");
		return done_testing();
	}
	seen = mmap(NULL, RANKS * sizeof *seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (seen == MAP_FAILED)
		return 1;
	out_of_reach();
	chosen("", "", 5, 5, 0);
	chosen("10.77.1.0/24", "10.77.1.", 1, 1, 1);
	chosen("10.77.2.0/24", "10.77.2.", 1, 1, 2);
	chosen("fd77:2::/64", "fd77:2::", 1, 1, 2);
	chosen("two", "", 2, 2, 2);
	link_local("three");
	pulled();
	/* The left machine still offers its end of a cable that is down at the right. */
	ok(!in_machine(0, "ip link set one up && ip addr replace fd77:1::1/64 dev one nodad") &&
	           !in_machine(1, "ip link set one down"),
	   "one cable is down at one end");
	chosen("", "", 5, 3, 2);
	munmap(seen, RANKS * sizeof *seen);
	return done_testing();
}
