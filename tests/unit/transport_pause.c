/* A thread that waits for whoever comes: woken by what arrives, by a descriptor, by the
 * clock, and by the end of the job. */
#include "tests/support/pace.h"
#include "tests/support/transport_ranks.h"

#include <sys/eventfd.h>

enum { MESSAGES = 50, LONG = 300000 };

static void *later(void *arg)
{
	usleep(50000);
	eventfd_write(*(int *)arg, 1);
	return NULL;
}

/* Rank 0 listens to the two others at once, who speak when they like. */
static void listening(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	const gradcomp_links *l = channel_links(c);
	unsigned char *in[2] = {malloc(LONG), malloc(LONG)};
	gradcomp_request rq[2];
	gradcomp_error *err = &b->error[rank];
	int heard[2] = {0};
	if (rank) {
		memset(in[0], rank, LONG);
		for (int k = 0; k < MESSAGES && !b->status[rank]; k++) {
			usleep(rank == 1 && k % 10 == 0 ? 20000 : 200);
			b->status[rank] = l->send(l->ctx, 0, in[0], k % 2 ? LONG : 8, &rq[0], err);
			if (!b->status[rank])
				b->status[rank] = l->wait(l->ctx, &rq[0], err);
		}
	} else {
		for (int p = 0; p < 2; p++)
			b->status[0] |= l->recv(l->ctx, p + 1, in[p], 8, &rq[p], err);
		while (!b->status[0] && heard[0] + heard[1] < 2 * MESSAGES) {
			for (int p = 0; p < 2 && !b->status[0]; p++)
				while (heard[p] < MESSAGES && channel_done(&rq[p]) && !b->status[0]) {
					size_t bytes = heard[p] % 2 ? LONG : 8;

					if (in[p][0] != p + 1 || in[p][bytes - 1] != p + 1)
						atomic_fetch_add(&b->wrong, 1);
					memset(in[p], 0, LONG);
					if (++heard[p] < MESSAGES)
						b->status[0] = l->recv(l->ctx, p + 1, in[p], heard[p] % 2 ? LONG : 8,
						                       &rq[p], err);
				}
			/* A post may have moved bytes and so completed another. */
			if (!b->status[0] && heard[0] + heard[1] < 2 * MESSAGES)
				b->status[0] = channel_pause(c, -1, 0.01, err);
		}
	}
	free(in[0]);
	free(in[1]);
	/* Nobody closes while another still listens. */
	board_exchange(b);
	channel_close(c);
}

static void waking(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	gradcomp_error *err = &b->error[rank];
	pthread_t thread;
	int fd = eventfd(0, EFD_CLOEXEC);
	double begin = board_now();
	b->status[rank] = channel_pause(c, -1, 0.05, err);
	b->when[0] = board_now() - begin;
	begin = board_now();
	pthread_create(&thread, NULL, later, &fd);
	/* Never longer than a second, whatever is asked for. */
	b->status[rank] |= channel_pause(c, fd, 100, err);
	b->when[1] = board_now() - begin;
	pthread_join(thread, NULL);
	close(fd);
	channel_close(c);
}

static void ending(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	gradcomp_status st = GRADCOMP_OK;
	board_exchange(b);
	if (rank)
		_exit(0);
	/* A pause also ends when a link has moved something, any number of times before. */
	for (double until = board_now() + 60; !st && board_now() < until;)
		st = channel_pause(c, -1, 1, &b->error[0]);
	b->status[0] = st;
	channel_close(c);
}

static board *run(int n, const char *allow, void (*body)(board *, transport *, int))
{
	board *b = board_new(n);
	b->options.allow = allow;
	b->body = body;
	board_fork(b);
	board_join(b);
	return b;
}

int main(void)
{
	for (int k = 0; k < 2; k++) {
		const char *allow = k ? "shm" : "tcp";
		board *b = run(3, allow, listening);

		ok(board_well(b) && !atomic_load(&b->wrong), "%s: two peers are listened to at once", allow);
		board_free(b);
	}
	board *b = run(1, "tcp", waking);
	ok(board_well(b), "one who is alone may wait too,");
	ok(b->when[0] > 0.04 && in_time(b->when[0], 0.9), "by the clock: %.3f s,", b->when[0]);
	ok(b->when[1] > 0.04 && in_time(b->when[1], 0.9), "for a descriptor: %.3f s", b->when[1]);
	board_free(b);
	b = run(2, "tcp", ending);
	is_int(b->status[0], GRADCOMP_ERR_PEER, "and is told when a peer dies");
	like(b->error[0].text, "rank 1", "by its name");
	board_free(b);
	return done_testing();
}
