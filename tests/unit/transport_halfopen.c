/* Three machines, a cable between each two. Ranks 1 and 2 have work with each
 * other, rank 0 has none; then the cable between 1 and 2 loses everything, while
 * the control tree, which is 0-1 and 0-2, hears all is well. */
#define _GNU_SOURCE
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"

#include "tests/support/netns.h"

#include <sys/prctl.h>

#define RANKS 3
#define TIMEOUT 3

static void enter(int rank)
{
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (setns(machine[rank], CLONE_NEWNET))
		_exit(1);
}

static const char *machines_make(void)
{
	static const char *const up[RANKS] = {
		"ip addr add 10.78.1.1/24 dev c01 && ip addr add 10.78.2.1/24 dev c02 && ip link set c01 up && ip link set c02 up",
		"ip addr add 10.78.1.2/24 dev c01 && ip addr add 10.78.3.2/24 dev c12 && ip link set c01 up && ip link set c12 up",
		"ip addr add 10.78.2.3/24 dev c02 && ip addr add 10.78.3.3/24 dev c12 && ip link set c02 up && ip link set c12 up"};
	const char *why = machines_new(RANKS);
	if (why)
		return why;
	if (machines_wire(0, "c01", 1, "c01") || machines_wire(0, "c02", 2, "c02") || machines_wire(1, "c12", 2, "c12"))
		return "this machine has no veth";
	for (int k = 0; k < RANKS; k++)
		if (in_machine(k, up[k]))
			return "the machines cannot be wired";
	return NULL;
}

/* arg: 's': 1 sends for ever, 2 receives; 'w': 2 waits for what 1 does not send.
 * Rank 0 waits for a message of rank 1. */
static void body(board *b, transport *t, int rank)
{
	size_t bytes = 1 << 20;
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	char *buf = calloc(1, bytes), x = 0;
	int waits = *(const char *)b->arg == 'w';
	gradcomp_request rq;
	gradcomp_status st = GRADCOMP_OK;
	for (int k = 0; !st; k++) {
		if (rank)
			st = rank == 1 && !(waits && k == 3) ? l->send(l->ctx, 2, buf, bytes, &rq, &b->error[rank])
			                                     : l->recv(l->ctx, rank == 1 ? 0 : 1, buf,
			                                               rank == 1 ? 1 : bytes, &rq, &b->error[rank]);
		else
			st = l->recv(l->ctx, 1, &x, 1, &rq, &b->error[rank]);
		if (k == (rank ? 2 : 0))
			atomic_fetch_add(&b->ready, 1);
		if (!st)
			st = l->wait(l->ctx, &rq, &b->error[rank]);
	}
	b->status[rank] = st;
	b->when[rank] = board_now();
	channel_close(c);
	free(buf);
}

static void half_open(const char *how, const char *name)
{
	board *b = board_new(RANKS);
	double begin, until = board_now() + 20 * pace();
	int good = 1;
	b->options.timeout = TIMEOUT * pace();
	b->arg = (void *)(uintptr_t)how;
	b->enter = enter;
	b->body = body;
	board_fork(b);
	while (atomic_load(&b->ready) < RANKS && board_now() < until)
		usleep(1000);
	ok(atomic_load(&b->ready) == RANKS, "%s: all ranks are connected", name);
	begin = board_now();
	/* No carrier is lost by this, and nobody is told. */
	ok(!in_machine(1, "ip route add blackhole 10.78.3.3/32 && ip rule add pref 0 from all iif c12 blackhole"),
	   "%s: the path between ranks 1 and 2 is cut", name);
	board_join(b);
	for (int r = 0; r < RANKS; r++) {
		double took = b->when[r] - begin;

		printf("# rank %d: %d after %.1f s: %s\n", r, b->status[r], took, b->error[r].text);
		good &= b->status[r] == GRADCOMP_ERR_TIMEOUT && in_time(took, b->options.timeout + LATE) && took > 1 &&
		        (strstr(b->error[r].text, "the host of rank 1 on ") ||
		         strstr(b->error[r].text, "the host of rank 2 on ")) &&
		        strstr(b->error[r].text, "has not answered");
	}
	ok(good, "%s: all ranks learn within the time limit which host does not answer", name);
	ok(!in_machine(1, "ip route del blackhole 10.78.3.3/32; ip rule del pref 0 from all iif c12 blackhole"),
	   "it is mended");
	board_free(b);
}

int main(void)
{
	const char *why = machines_make();
	if (why) {
		skip(why, "three machines");
		return done_testing();
	}
	half_open("s", "in a transfer");
	half_open("w", "while waiting");
	return done_testing();
}
