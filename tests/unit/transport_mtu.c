/* A path that loses packets of full size while smaller ones get through: what the ranks say of it. */
#define _GNU_SOURCE
#include "tests/support/network_layouts.h"

#define TIMEOUT 3

/* The last machine's port of the switch takes 1500 bytes, all others 9000. */
static const layout lossy = {
	.what = "an MTU of 9000 behind one of 1500", .machines = 3, .net = {{.name = "eth0", .v4 = "10.1.0.%d/24"}}};

static struct said {
	gradcomp_error error[LAYOUT_RANKS];
	double when[LAYOUT_RANKS];
} * said;

static void body(board *b, transport *t, int rank)
{
	double begin = board_now();
	layout_body(b, t, rank);
	said->error[rank] = b->error[rank];
	said->when[rank] = board_now() - begin;
}

int main(void)
{
	const char *why = layout_make(&lossy);
	board *b = board_new(3);
	said = mmap(NULL, sizeof *said, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	layout_seen = mmap(NULL, sizeof *layout_seen, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int k = 0; k < 3 && !why; k++)
		if (in_machine(k, "ip link set eth0 mtu 9000 gso_max_segs 1") || setns(machine[3], CLONE_NEWNET) ||
		    (k < 2 && shell("ip link set p0-%d mtu 9000", k)))
			why = "MTUs cannot be set";
	if (why) {
		skip(why, "%s", lossy.what);
		return done_testing();
	}
	layout_now = &lossy;
	b->options.timeout = TIMEOUT;
	b->enter = layout_enter;
	b->body = body;
	board_fork(b);
	board_join(b);
	for (int r = 0; r < 3; r++) {
		const char *text = said->error[r].text;

		printf("# rank %d after %.1f s: %s\n", r, said->when[r], text);
		is_int(said->error[r].status, GRADCOMP_ERR_TIMEOUT, "rank %d does not wait for ever", r);
		like(text, "packets of ", "the cause is what it says");
		like(text, " bytes", "with their size");
		ok(strstr(text, "rank 2 on m3") != NULL, "and the end that they do not reach, or come from");
		ok(!strstr(text, "has not answered") && !strstr(text, "closed") && !strstr(text, "died"),
		   "nobody is told to be dead");
		ok(in_time(said->when[r], 2 * TIMEOUT + 2), "in time");
	}
	board_free(b);
	return done_testing();
}
