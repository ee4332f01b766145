/* Sends straight out of the caller's buffer: the buffer is given back when the
 * kernel is done with it and not before, and where it copies after all, that ends. */
#include "tests/support/transport_ranks.h"

#include "transport/link/link.h"
#include "transport/tcp/zerocopy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#define BYTES ((size_t)1 << 20)
#define MESSAGES 40

/* A connection over loopback: fd[0] sends. */
static int connection(int fd[2])
{
	struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t bytes = sizeof sa;
	int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	fd[0] = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (bind(listener, (struct sockaddr *)&sa, sizeof sa) || listen(listener, 1) ||
	    getsockname(listener, (struct sockaddr *)&sa, &bytes) || connect(fd[0], (struct sockaddr *)&sa, sizeof sa))
		return -1;
	fd[1] = accept(listener, NULL, NULL);
	close(listener);
	return fd[1] < 0 ? -1 : 0;
}

/* The kernel's words for one send over loopback, which it copies. */
static void notified(zerocopy_mode mode)
{
	transport t = {.o = {.zerocopy = mode}};
	channel c = {.t = &t};
	link_use use = {0};
	peer_link l = {.c = &c, .use = &use, .active = 1};
	request r = {.link = &l, .bytes = 2 * ZEROCOPY_MIN, .left = 0, .sending = 1};
	char *buf = calloc(1, 2 * ZEROCOPY_MIN);
	zerocopy *z = NULL;
	int fd[2] = {-1, -1}, got;
	size_t read = 0;
	if (!ok(!connection(fd), "a connection"))
		goto end;
	z = zerocopy_start(&t, fd[0]);
	if (mode == ZEROCOPY_NO) {
		ok(!z && !zerocopy_flag(z, BYTES) && !zerocopy_busy(z), "zerocopy=no: there is none");
		goto end;
	}
	if (!z) {
		skip("this kernel has no MSG_ZEROCOPY", "notifications");
		goto end;
	}
	queue_add(&l.send, &r);
	c.active = &l;
	ok(!zerocopy_flag(z, ZEROCOPY_MIN - 1) && zerocopy_flag(z, ZEROCOPY_MIN) == MSG_ZEROCOPY, "long sends only");
	for (int i = 0; i < 2; i++) {
		is_int(send(fd[0], buf + (size_t)i * ZEROCOPY_MIN, ZEROCOPY_MIN, MSG_ZEROCOPY), ZEROCOPY_MIN, "a call");
		zerocopy_sent(z, &r);
	}
	ok(zerocopy_busy(z) && r.in_kernel == 2 && !zerocopy_reap(&t, z, fd[0]) && !r.done,
	   "nothing is read yet: the buffer is in use");
	while (read < 2 * ZEROCOPY_MIN && (got = (int)recv(fd[1], buf, ZEROCOPY_MIN, 0)) > 0)
		read += (size_t)got;
	for (int i = 0; zerocopy_busy(z) && i < 1000; i++) {
		struct pollfd p = {fd[0], 0, 0};

		poll(&p, 1, 10);
		zerocopy_reap(&t, z, fd[0]);
	}
	ok(!zerocopy_busy(z) && r.done && !r.in_kernel, "all is read: it can be used again");
	printf("# copied: %llu of 2\n", (unsigned long long)z->copied);
	if (z->copied)
		is_int(z->off, mode == ZEROCOPY_AUTO, "the kernel copied: %s",
		       mode == ZEROCOPY_AUTO ? "no more of it" : "it goes on");
	else
		is_int(z->off, 0, "the kernel did not copy: it goes on");
	r.done = 0;
	r.in_kernel = 0;
	queue_add(&l.send, &r);
	z->off = 0;
	for (int i = 0; i < ZEROCOPY_CALLS; i++) {
		ok(zerocopy_flag(z, BYTES) != 0, "call %d", i);
		if (send(fd[0], buf, ZEROCOPY_MIN, MSG_ZEROCOPY | MSG_DONTWAIT) < 0)
			break;
		zerocopy_sent(z, &r);
	}
	if (z->next - z->done == ZEROCOPY_CALLS)
		is_int(zerocopy_flag(z, BYTES), 0, "so many and no more are under way");
	zerocopy_abort(z, fd[0]);
	ok(send(fd[0], buf, 1, MSG_NOSIGNAL) < 0, "what is aborted is closed");
end:
	free(z);
	free(buf);
	close(fd[0]);
	close(fd[1]);
}

/* Each message out of the same buffer, written anew as soon as it is free, to a
 * peer that takes its time; small ones between them. */
static void reused(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	const gradcomp_links *l = channel_links(c);
	unsigned char *buf = malloc(BYTES);
	gradcomp_request rq, small;
	int number;
	for (int k = 0; k < MESSAGES && !b->status[rank]; k++) {
		size_t bytes = BYTES - (size_t)(k * 4099);

		number = k;
		if (rank) {
			memset(buf, 0, BYTES);
			if (k % 8 == 0)
				usleep(5000);
		} else {
			memset(buf, 'a' + k, BYTES);
		}
		b->status[rank] = rank ? l->recv(l->ctx, 0, buf, bytes, &rq, &b->error[rank])
		                       : l->send(l->ctx, 1, buf, bytes, &rq, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = rank ? l->recv(l->ctx, 0, &number, sizeof number, &small, &b->error[rank])
			                       : l->send(l->ctx, 1, &number, sizeof number, &small, &b->error[rank]);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &rq, &b->error[rank]);
		if (!rank)
			memset(buf, 0x55, BYTES);
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &small, &b->error[rank]);
		if (rank && (number != k || buf[0] != 'a' + k || memcmp(buf, buf + 1, bytes - 1)))
			atomic_fetch_add(&b->wrong, 1);
	}
	channel_close(c);
	free(buf);
}

/* The kernel's notifications come while something unasked for has come too, and then
 * nothing happens for longer than a closed connection is given. */
static void crossing(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	const gradcomp_links *l = channel_links(c);
	unsigned char *buf = calloc(8, BYTES);
	gradcomp_request rq[3];
	if (rank)
		b->status[1] = l->send(l->ctx, 0, buf, 8, &rq[2], &b->error[1]);
	for (int i = 0; i < 2 && !b->status[rank]; i++) {
		unsigned char *half = buf + (size_t)i * 4 * BYTES;

		if (rank) {
			usleep(i ? 1300000 : 200000);
			b->status[1] = l->recv(l->ctx, 0, half, 4 * BYTES, &rq[i], &b->error[1]);
			if (!b->status[1])
				b->status[1] = l->wait(l->ctx, &rq[i], &b->error[1]);
		} else {
			b->status[0] = l->send(l->ctx, 1, half, 4 * BYTES, &rq[i], &b->error[0]);
		}
	}
	for (int i = 0; i < 2 && !rank && !b->status[0]; i++)
		b->status[0] = l->wait(l->ctx, &rq[i], &b->error[0]);
	if (!rank && !b->status[0])
		b->status[0] = l->recv(l->ctx, 1, buf, 8, &rq[2], &b->error[0]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &rq[2], &b->error[rank]);
	channel_close(c);
	free(buf);
}

/* The rank that sends is the one that is told of a failure in between. */
static void cut_short(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 4);
	const gradcomp_links *l = channel_links(c);
	unsigned char *buf = calloc(1, 64 * BYTES);
	gradcomp_request rq[8];
	for (int i = 0; i < 8 && !rank && !b->status[0]; i++)
		b->status[0] = l->send(l->ctx, 1, buf + (size_t)i * 8 * BYTES, 8 * BYTES, &rq[i], &b->error[0]);
	if (rank) {
		b->status[1] = l->recv(l->ctx, 0, buf, 8 * BYTES, &rq[0], &b->error[1]);
		if (!b->status[1])
			b->status[1] = l->wait(l->ctx, &rq[0], &b->error[1]);
		transport_fail(t, GRADCOMP_ERR_IO, 1, "rank 1 has had enough");
		b->status[1] = GRADCOMP_ERR_IO;
	} else {
		for (int i = 0; i < 8 && !b->status[0]; i++)
			b->status[0] = l->wait(l->ctx, &rq[i], &b->error[0]);
		/* By the contract it is this rank's again. */
		memset(buf, 1, 64 * BYTES);
	}
	channel_close(c);
	free(buf);
}

int main(void)
{
	static const char *const name[] = {"auto", "yes", "no"};
	for (int mode = ZEROCOPY_AUTO; mode <= ZEROCOPY_NO; mode++) {
		notified((zerocopy_mode)mode);
		for (int streams = 1; streams <= 3; streams += 2) {
			board *b = board_new(2);

			b->options.allow = "tcp";
			b->options.zerocopy = (zerocopy_mode)mode;
			b->options.streams = streams;
			b->options.chunk = 128 << 10;
			b->body = reused;
			board_fork(b);
			board_join(b);
			ok(board_well(b) && !atomic_load(&b->wrong),
			   "zerocopy=%s, %d streams: buffers are written anew once free", name[mode], streams);
			board_free(b);
			b = board_new(2);
			b->options.allow = "tcp";
			b->options.zerocopy = (zerocopy_mode)mode;
			b->options.streams = streams;
			b->body = crossing;
			board_fork(b);
			board_join(b);
			ok(board_well(b), "both ways at once, slowly");
			board_free(b);
			b = board_new(2);
			b->options.allow = "tcp";
			b->options.zerocopy = (zerocopy_mode)mode;
			b->options.streams = streams;
			b->body = cut_short;
			board_fork(b);
			board_join(b);
			ok(b->status[0] == GRADCOMP_ERR_IO && b->stopped[0] == GRADCOMP_ERR_IO,
			   "and a failure gives them back");
			if (b->status[0] != GRADCOMP_ERR_IO)
				printf("# %d %s\n", b->status[0], b->error[0].text);
			board_free(b);
		}
	}
	return done_testing();
}
