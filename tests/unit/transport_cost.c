/* Checks what links cost: connections only where there is traffic, and a peer that does not take what it is sent
 * makes nobody grow. */
#define _GNU_SOURCE
#include "tests/support/transport_ranks.h"
#include "tests/support/dir_entries.h"

#include "transport/link/link.h"

#include <linux/sockios.h>
#include <sys/ioctl.h>

#define PIECE ((size_t)4 << 20)
#define PIECES 64

/* KiB a sender may grow by. ThreadSanitizer's notes of a byte that is touched are resident
 * too, four bytes and a half of them. */
#ifdef __SANITIZE_THREAD__
#define GROWN_MOST (6 * 2048)
#else
#define GROWN_MOST 2048
#endif

/* Where the ranks of a test leave what they have counted. */
static struct counted {
	int before, opened, ring, closed;
	long grown, queued; /* KiB */
} * counted;

static long resident(void)
{
	char line[200];
	long kib = 0;
	FILE *f = fopen("/proc/self/status", "re");
	while (f && fgets(line, sizeof line, f))
		if (!strncmp(line, "VmRSS:", 6))
			kib = strtol(line + 6, NULL, 10);
	if (f)
		fclose(f);
	return kib;
}

static void together(board *b, int phase)
{
	atomic_fetch_add(&b->late, 1);
	while (atomic_load(&b->late) < phase * b->n)
		usleep(200);
}

/* One message to the right. */
static void ring(board *b, transport *t, int rank)
{
	struct counted *mine = &counted[rank];
	gradcomp_request s, r;
	int in = -1, left = (rank + b->n - 1) % b->n;
	channel *c;
	board_exchange(b);
	mine->before = entries("/proc/self/fd");
	c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	mine->opened = entries("/proc/self/fd");
	/* Nobody connects before everybody has counted. */
	together(b, 1);
	b->status[rank] = l->recv(l->ctx, left, &in, sizeof in, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->send(l->ctx, (rank + 1) % b->n, &rank, sizeof rank, &s, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &s, &b->error[rank]);
	if (in != left)
		atomic_fetch_add(&b->wrong, 1);
	/* Both neighbours have had what they wanted, so both connections stand. */
	mine->ring = entries("/proc/self/fd");
	together(b, 2);
	channel_close(c);
	mine->closed = entries("/proc/self/fd");
}

static void connections(int n, const char *allow, int streams)
{
	board *b = board_new(n);
	int good = 1;
	memset(counted, 0, BOARD_RANKS * sizeof *counted);
	b->options.allow = allow;
	b->options.streams = streams;
	b->body = ring;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "%d ranks in a ring over %s", n, allow);
	for (int r = 0; r < n; r++) {
		const struct counted *k = &counted[r];
		int peers = n > 2 ? 2 : 1;

		if (k->opened != k->before + 1 || k->ring != k->opened + peers * streams || k->closed != k->before) {
			printf("# rank %d: %d descriptors, %d with a channel, %d with its links, %d after\n", r,
			       k->before, k->opened, k->ring, k->closed);
			good = 0;
		}
	}
	ok(good, "a channel is one descriptor, a neighbour %d more, and nobody else costs any", streams);
	board_free(b);
}

/* Rank 0 has 256 MiB to send, rank 1 takes nothing for a while. */
static void slow(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request *rq = calloc(PIECES, sizeof *rq);
	unsigned char *buf = malloc(PIECE), hello = 1;
	int done;
	memset(buf, 7, PIECE);
	/* Connected, so that what links cost is there already. */
	b->status[rank] = rank ? l->recv(l->ctx, 0, &hello, 1, rq, &b->error[1])
	                       : l->send(l->ctx, 1, &hello, 1, rq, &b->error[0]);
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, rq, &b->error[rank]);
	if (!rank) {
		long before = resident();

		for (int i = 0; i < PIECES && !b->status[0]; i++)
			b->status[0] = l->send(l->ctx, 1, buf, PIECE, &rq[i], &b->error[0]);
		for (int i = 0; i < 300 && !b->status[0]; i++, usleep(1000))
			b->status[0] = l->test(l->ctx, &rq[PIECES - 1], &done, &b->error[0]);
		counted[0].grown = resident() - before;
		for (int i = 0, bytes = 0; i < c->links[1]->nfd; i++)
			if (c->links[1]->use->kind->hello == HELLO_TCP && !ioctl(c->links[1]->fd[i], SIOCOUTQ, &bytes))
				counted[0].queued += bytes / 1024;
		atomic_store(&b->late, 1);
	}
	while (!atomic_load(&b->late))
		usleep(1000);
	for (int i = 0; i < PIECES && !b->status[rank]; i++) {
		if (rank) {
			memset(buf, 0, PIECE);
			b->status[1] = l->recv(l->ctx, 0, buf, PIECE, &rq[i], &b->error[1]);
		}
		if (!b->status[rank])
			b->status[rank] = l->wait(l->ctx, &rq[i], &b->error[rank]);
		if (buf[0] != 7 || buf[PIECE - 1] != 7)
			atomic_fetch_add(&b->wrong, 1);
	}
	channel_close(c);
	free(buf);
	free(rq);
}

/* Returns what the kernel may keep of one connection: the third number of tcp_wmem, KiB. */
static long wmem_most(void)
{
	long bytes = 0;
	FILE *f = fopen("/proc/sys/net/ipv4/tcp_wmem", "re");
	if (f && fscanf(f, "%*d %*d %ld", &bytes) != 1)
		bytes = 0;
	if (f)
		fclose(f);
	return bytes / 1024;
}

static void back_pressure(const char *allow, int cma, int streams, zerocopy_mode zero)
{
	board *b = board_new(2);
	memset(counted, 0, BOARD_RANKS * sizeof *counted);
	b->options.allow = allow;
	b->options.cma = cma;
	b->options.streams = streams;
	b->options.zerocopy = zero;
	b->body = slow;
	board_fork(b);
	board_join(b);
	ok(board_well(b) && !atomic_load(&b->wrong), "%s, %d streams: 256 MiB wait for a slow receiver", allow,
	   streams);
	/* A ring of shared memory that is filled becomes resident, once. */
	ok(counted[0].grown < GROWN_MOST, "the sender grows by %ld KiB", counted[0].grown);
	ok(counted[0].queued <= streams * wmem_most(), "the kernel keeps %ld KiB, of at most %d x %ld",
	   counted[0].queued, streams, wmem_most());
	board_free(b);
}

int main(void)
{
	counted = mmap(NULL, BOARD_RANKS * sizeof *counted, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (counted == MAP_FAILED)
		return 1;
	connections(2, "tcp", 1);
	connections(16, "tcp", 1);
	connections(9, "tcp", 4);
	connections(16, "shm", 1);
	back_pressure("shm", 0, 1, ZEROCOPY_NO);
	back_pressure("shm", 1, 1, ZEROCOPY_NO);
	back_pressure("tcp", 0, 1, ZEROCOPY_NO);
	back_pressure("tcp", 0, 4, ZEROCOPY_AUTO);
	back_pressure("tcp", 0, 1, ZEROCOPY_YES);
	munmap(counted, BOARD_RANKS * sizeof *counted);
	return done_testing();
}
