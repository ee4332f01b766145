/* Latency that is asked for is there, no more of it than that, and bandwidth stays. */
#include "tests/support/transport_ranks.h"

#include <math.h>

#include "transport/core/emulate_latency.h"

#define PINGS 30
#define BULK ((size_t)16 << 20)

static double at_least(const double *v, int n)
{
	double least = v[0];

	for (int i = 1; i < n; i++)
		least = v[i] < least ? v[i] : least;
	return least;
}

static void pass(board *b, const gradcomp_links *l, int rank, int from, void *p, size_t bytes)
{
	gradcomp_request rq;

	if (b->status[rank])
		return;
	b->status[rank] = rank == from ? l->send(l->ctx, !rank, p, bytes, &rq, &b->error[rank])
	                               : l->recv(l->ctx, from, p, bytes, &rq, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
}

/* when[0], when[1]: the least round trip, the least time for 16 MiB in pieces of
 * 256 KiB of which eight are posted ahead, as a ring does it. */
static void measured(board *b, transport *t, int rank)
{
	enum { PIECE = 256 << 10, AHEAD = 8, PIECES = BULK / PIECE };
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	unsigned char *bulk = calloc(1, BULK);
	gradcomp_request rq[AHEAD];
	double took[PINGS], begin;
	int number;

	for (int i = 0; i < PINGS; i++) {
		begin = board_now();
		number = rank ? -1 : i;
		pass(b, l, rank, 0, &number, sizeof number);
		pass(b, l, rank, 1, &number, sizeof number);
		took[i] = board_now() - begin;
		if (number != i)
			atomic_fetch_add(&b->wrong, 1);
	}
	if (!rank)
		b->when[0] = at_least(took, PINGS);
	for (int round = 0; round < 5; round++) {
		for (size_t i = 0; !rank && i < BULK; i += 4096)
			bulk[i] = (unsigned char)(i >> 12) ^ (unsigned char)round;
		begin = board_now();
		for (int i = 0; i < PIECES + AHEAD && !b->status[rank]; i++) {
			if (i >= AHEAD)
				b->status[rank] = l->wait(l->ctx, &rq[i % AHEAD], &b->error[rank]);
			if (i < PIECES && !b->status[rank])
				b->status[rank] = rank ? l->recv(l->ctx, 0, bulk + (size_t)i * PIECE, PIECE, &rq[i % AHEAD],
				                                 &b->error[rank])
				                       : l->send(l->ctx, 1, bulk + (size_t)i * PIECE, PIECE,
				                                 &rq[i % AHEAD], &b->error[rank]);
		}
		pass(b, l, rank, 1, &number, sizeof number);
		took[round] = board_now() - begin;
		for (size_t i = 0; i < BULK; i += 4096)
			if (bulk[i] != ((unsigned char)(i >> 12) ^ (unsigned char)round)) {
				atomic_fetch_add(&b->wrong, 1);
				break;
			}
	}
	if (!rank)
		b->when[1] = at_least(took, 5);
	channel_close(c);
	free(bulk);
}

static void run(const char *allow, const char *delay, int streams, double *ping, double *bulk)
{
	board *b = board_new(2);

	b->options.allow = allow;
	b->options.delay = delay;
	b->options.streams = streams;
	b->body = measured;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "%s, delay_us=%s: what was sent came, in order", allow, delay);
	*ping = b->when[0] * 1e6;
	*bulk = b->when[1] * 1e3;
	printf("# %s, delay_us=%s: round trip %.0f us, 16 MiB in %.2f ms\n", allow, delay, *ping, *bulk);
	board_free(b);
}

/* Again, while the least round trip is above `us` or the least time of 16 MiB above `ms`: others
 * have the processor, too. */
static void run_well(const char *allow, const char *delay, int streams, double us, double ms, double *ping,
                     double *bulk)
{
	run(allow, delay, streams, ping, bulk);
	for (int k = 0; k < 20 && (*ping >= us || *bulk >= ms); k++) {
		double other[2];

		run(allow, delay, streams, &other[0], &other[1]);
		*ping = other[0] < *ping ? other[0] : *ping;
		*bulk = other[1] < *bulk ? other[1] : *bulk;
	}
}

/* A peer that says all it has to say and leaves: it is heard to the end. */
static void farewell(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	int x[3] = {1, 2, 3};

	for (int i = 0; i < 3; i++)
		pass(b, l, rank, 0, rank ? memset(&x[i], 0, sizeof x[i]) : &x[i], sizeof x[i]);
	if (x[0] != 1 || x[1] != 2 || x[2] != 3)
		atomic_fetch_add(&b->wrong, 1);
	channel_close(c);
}

static void left_early(void)
{
	board *b = board_new(2);

	b->options.allow = "tcp";
	b->options.delay = "200000";
	b->body = farewell;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "what is held back is shown though its sender has closed");
	board_free(b);
}

static void drawn(void)
{
	delay d = {100e-6, 50e-6, 7}, other = {100e-6, 50e-6, 8};
	double sum = 0, least = 1, most = 0;
	int same = 1, differ = 0;

	for (uint32_t i = 0; i < 10000; i++) {
		double v = latency_of(&d, 1, 0, 1, i);

		sum += v;
		least = v < least ? v : least;
		most = v > most ? v : most;
		same &= v == latency_of(&d, 1, 0, 1, i);
		differ += v != latency_of(&other, 1, 0, 1, i) && v != latency_of(&d, 1, 1, 0, i) && v != latency_of(&d, 2, 0, 1, i);
	}
	ok(same && differ > 9990, "the jitter is the same again, and another one for another seed, way or channel");
	ok(least >= 100e-6 && least < 100.1e-6 && most < 150e-6 && most > 149.9e-6 && sum > 1.24 && sum < 1.26,
	   "it is spread over its range: %.2f to %.2f us, mean %.2f", least * 1e6, most * 1e6, sum * 1e2);
}

static void written(void)
{
	static const char *const bad[] = {"x", "-1", "+1", " 1", "1 ", "1/", "/1", "1//2", "1/2/", "1/2/3/4", "1.5", "1000001",
	                                  "1/1000001", "99999999999999999999", "1/2/99999999999999999999"};
	delay d;
	gradcomp_error e;

	ok(!latency_parse(NULL, &d, &e) && d.fixed == 0 && d.jitter == 0, "nothing is no delay");
	ok(!latency_parse("1000000/250/9", &d, &e) && d.fixed == 1 && d.jitter == 250e-6 && d.seed == 9, "all three");
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		is_int(latency_parse(bad[i], &d, &e), GRADCOMP_ERR_INVALID, "'%s' is refused", bad[i]);
	like(e.text, "write microseconds from 0 to 1000000", "and the message says what is right");
}

int main(void)
{
	double ping[4], bulk[4];

	written();
	drawn();
	run("tcp", "0", 1, &ping[0], &bulk[0]);
	run_well("tcp", "2000", 1, ping[0] + 4600, 4 * bulk[0] + 20, &ping[1], &bulk[1]);
	ok(ping[1] > 3990 && ping[1] < ping[0] + 4600, "2 ms each way: the round trip takes %.0f us instead of %.0f",
	   ping[1], ping[0]);
	/* One piece after another would take 64 times 2 ms. */
	ok(bulk[1] < 4 * bulk[0] + 20, "16 MiB take %.2f ms instead of %.2f", bulk[1], bulk[0]);
	run_well("tcp", "1000/500", 3, ping[0] + 3600, INFINITY, &ping[2], &bulk[2]);
	ok(ping[2] > 2000 && ping[2] < ping[0] + 3600, "with jitter and three streams: %.0f us", ping[2]);
	run_well("shm", "2000", 1, 2000, INFINITY, &ping[3], &bulk[3]);
	ok(ping[3] < 2000, "shared memory is not held back");
	left_early();
	return done_testing();
}
