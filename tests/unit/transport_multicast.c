/* A message to several peers at once arrives at each of them, in its turn among all others, whatever
 * they have in common; what a peer lies about the memory that it shares ends the job. */
#define _GNU_SOURCE
#include "tests/support/transport_ranks.h"

#include "base/fd_pass.h"
#include "transport/shm/multicast.h"
#include "transport/link/link.h"
#include "transport/shm/shm.h"
#include "transport/shm/shm_memory.h"
#include "transport/shm/shm_ring.h"

#include "tests/support/pace.h"

#include <sys/resource.h>

#define MOST 16 /* messages of a round */
#define ROUNDS 4

/* All ranks draw the same numbers. */
static uint32_t draw(uint32_t *state, uint32_t below)
{
	*state = *state * 1664525u + 1013904223u;
	return (uint32_t)(((uint64_t)*state * below) >> 32);
}

typedef struct message {
	int from, n, peers[BOARD_RANKS];
	bool multicast;
	size_t bytes;
} message;

static int draw_messages(uint32_t *state, int P, message *out)
{
	static const size_t sizes[] = {0,
	                               1,
	                               4097,
	                               MULTICAST_LEAST - 1,
	                               MULTICAST_LEAST,
	                               MULTICAST_SLOT,
	                               MULTICAST_SLOT + 1,
	                               MULTICAST_BYTES - 5,
	                               MULTICAST_BYTES,
	                               2 * MULTICAST_BYTES + 77};
	int n = 1 + (int)draw(state, MOST);
	for (int k = 0; k < n; k++) {
		message *m = &out[k];

		*m = (message){.from = (int)draw(state, (uint32_t)P), .multicast = draw(state, 3) > 0};
		m->bytes = sizes[draw(state, sizeof sizes / sizeof *sizes)];
		for (int p = (int)draw(state, (uint32_t)P), i = 0; i < P; i++, p = (p + 1) % P)
			if (p != m->from && draw(state, 4))
				m->peers[m->n++] = p;
	}
	return n;
}

static unsigned char byte_at(int round, int k, size_t i)
{
	return (unsigned char)(round * 31 + k * 7 + i + (i >> 8) * 3 + (i >> 16) * 5);
}

/* Everything is posted before anything is waited for, receives before sends at some ranks and after
 * them at others. */
static void random_messages(board *b, transport *t, int rank)
{
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	uint32_t state = *(uint32_t *)b->arg;
	message *messages = calloc(MOST, sizeof *messages);
	gradcomp_request *reqs = calloc(MOST * BOARD_RANKS, sizeof *reqs), *in = calloc(MOST, sizeof *in);
	unsigned char *bufs[MOST];
	for (int round = 0; round < ROUNDS && !b->status[rank]; round++) {
		int n = draw_messages(&state, b->n, messages);

		for (int k = 0; k < n; k++) {
			const message *m = &messages[k];

			bufs[k] = malloc(m->bytes + 1);
			for (size_t i = 0; i < m->bytes; i++)
				bufs[k][i] = rank == m->from ? byte_at(round, k, i) : 0xee;
			bufs[k][m->bytes] = 0x5a;
		}
		for (int pass = 0; pass < 2; pass++)
			for (int k = 0; k < n && !b->status[rank]; k++) {
				const message *m = &messages[k];

				if (rank == m->from && pass == (rank + round) % 2 && m->multicast)
					b->status[rank] = l->multicast(l->ctx, m->peers, m->n, bufs[k], m->bytes,
					                               &reqs[k * BOARD_RANKS], &b->error[rank]);
				for (int i = 0; i < m->n && !b->status[rank] && rank == m->from &&
				                pass == (rank + round) % 2 && !m->multicast;
				     i++)
					b->status[rank] = l->send(l->ctx, m->peers[i], bufs[k], m->bytes,
					                          &reqs[k * BOARD_RANKS + i], &b->error[rank]);
				for (int i = 0; i < m->n && !b->status[rank] && pass != (rank + round) % 2; i++)
					if (m->peers[i] == rank)
						b->status[rank] = l->recv(l->ctx, m->from, bufs[k], m->bytes, &in[k],
						                          &b->error[rank]);
			}
		for (int k = n - 1; k >= 0; k--) {
			const message *m = &messages[k];
			bool mine = rank == m->from;

			for (int i = 0; i < m->n && !b->status[rank]; i++) {
				if (rank == m->from)
					b->status[rank] = l->wait(l->ctx, &reqs[k * BOARD_RANKS + i], &b->error[rank]);
				if (m->peers[i] == rank)
					b->status[rank] = l->wait(l->ctx, &in[k], &b->error[rank]);
				mine |= m->peers[i] == rank;
			}
			for (size_t i = 0; i < m->bytes; i++)
				if (bufs[k][i] != (mine ? byte_at(round, k, i) : 0xee)) {
					atomic_fetch_add(&b->wrong, 1);
					break;
				}
			if (bufs[k][m->bytes] != 0x5a)
				atomic_fetch_add(&b->wrong, 1);
			free(bufs[k]);
		}
	}
	channel_close(c);
	free(messages);
	free(reqs);
	free(in);
}

static void everywhere(void)
{
	static const struct {
		const char *name, *allow;
		int ranks, per_node, cma, spin_us;
	} kinds[] = {{"shared memory", "shm", 5, 0, 0, 20},
	             {"shared memory, asleep", "shm", 4, 0, 0, 0},
	             {"read from the sender", "shm", 4, 0, 1, 20},
	             {"two ranks", "shm", 2, 0, 0, 20},
	             {"tcp", "tcp", 4, 0, 0, 20},
	             {"two nodes", "shm,tcp", 6, 3, 0, 20}};

	for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
		for (int processes = 0; processes < 2; processes++)
			for (uint32_t seed = 1; seed <= 2; seed++) {
				board *b = board_new(kinds[k].ranks);

				b->options.allow = kinds[k].allow;
				b->options.cma = kinds[k].cma;
				b->options.spin_us = kinds[k].spin_us;
				b->per_node = kinds[k].per_node;
				b->arg = &seed;
				b->body = random_messages;
				if (processes) {
					board_fork(b);
					board_join(b);
				} else {
					board_threads(b);
				}
				ok(board_well(b) && !atomic_load(&b->wrong), "%s, %d %s, seed %u", kinds[k].name, b->n,
				   processes ? "processes" : "threads", seed);
				board_free(b);
			}
}

/* Tries what is wrong, which is refused before anything is posted. */
static void refusals(board *b, transport *t, int rank)
{
	static const struct {
		int peers[2], n;
		const char *text;
	} wrong[] = {{{1, 1}, 2, "1 is named twice as a peer of rank 0"},
	             {{1, 0}, 2, "0 is no peer of rank 0 in a group of 3"},
	             {{2, 3}, 2, "3 is no peer of rank 0 in a group of 3"},
	             {{-1, 2}, 2, "-1 is no peer of rank 0 in a group of 3"}};
	static const int both[] = {1, 2};
	size_t bytes = MULTICAST_SLOT + 1;
	unsigned char *x = calloc(1, bytes);
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request reqs[2];

	for (size_t k = 0; !rank && k < sizeof wrong / sizeof *wrong; k++) {
		gradcomp_error err = {0};

		if (l->multicast(l->ctx, wrong[k].peers, wrong[k].n, x, bytes, reqs, &err) != GRADCOMP_ERR_INVALID ||
		    strcmp(err.text, wrong[k].text)) {
			printf("# %s\n", err.text);
			atomic_fetch_add(&b->wrong, 1);
		}
	}
	if (rank)
		b->status[rank] = l->recv(l->ctx, 0, x, bytes, reqs, &b->error[rank]);
	else if (!(b->status[0] = l->multicast(l->ctx, both, 0, x, bytes, reqs, &b->error[0])))
		b->status[0] = l->multicast(l->ctx, both, 2, x, bytes, reqs, &b->error[0]);
	for (int i = 0; i < (rank ? 1 : 2) && !b->status[rank]; i++)
		b->status[rank] = l->wait(l->ctx, &reqs[i], &b->error[rank]);
	channel_close(c);
	free(x);
}

/* Rank 0 fills its buffer for ranks 1 and 2, and needs it again for 1 and 3 when rank 2, which is late, is
 * all that it waits for. */
static void late(board *b, transport *t, int rank)
{
	static const int first[] = {1, 2}, second[] = {1, 3};
	unsigned char *x = calloc(2, MULTICAST_BYTES);
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request reqs[4];
	int n = 0;
	if (rank == 2)
		usleep(300000);
	if (rank == 0) {
		b->status[0] = l->multicast(l->ctx, first, 2, x, MULTICAST_BYTES, reqs, &b->error[0]);
		if (!b->status[0])
			b->status[0] = l->multicast(l->ctx, second, 2, x, MULTICAST_BYTES, reqs + 2, &b->error[0]);
		n = 4;
	}
	if (rank == 1 || rank == 2)
		b->status[rank] = l->recv(l->ctx, 0, x, MULTICAST_BYTES, &reqs[n++], &b->error[rank]);
	if ((rank == 1 || rank == 3) && !b->status[rank])
		b->status[rank] = l->recv(l->ctx, 0, x + MULTICAST_BYTES, MULTICAST_BYTES, &reqs[n++], &b->error[rank]);
	for (int i = 0; i < n && !b->status[rank]; i++)
		b->status[rank] = l->wait(l->ctx, &reqs[i], &b->error[rank]);
	b->when[rank] = board_now();
	channel_close(c);
	free(x);
}

static void small_cases(void)
{
	board *b = board_new(3);
	b->options.allow = "shm";
	b->options.cma = 0;
	b->body = refusals;
	board_threads(b);
	ok(board_well(b) && !atomic_load(&b->wrong),
	   "peers that are none or twice are refused, and leave nothing behind");
	board_free(b);
	for (int asleep = 0; asleep < 2; asleep++) {
		double least = 1e9;
		int well = 1;

		for (int k = 0; k < 3; k++) {
			b = board_new(4);
			b->options.allow = "shm";
			b->options.cma = 0;
			b->options.spin_us = asleep ? 0 : 50;
			b->body = late;
			board_fork(b);
			board_join(b);
			well &= board_well(b);
			if (b->when[3] - b->when[2] < least)
				least = b->when[3] - b->when[2];
			board_free(b);
		}
		ok(well, "a receiver that is late, others %s", asleep ? "asleep" : "spinning");
		/* A rank that sleeps and is not woken looks again after 1 s, each time. */
		ok(least < 0.9, "as soon as %.3f s after it the others have theirs", least);
	}
}

typedef enum lie { SLOT, LENGTH, SHORT, NOT_SEALED, TOO_SMALL, TWICE, FULL, NO_MEMORY_AND_GONE, KILLED, LIES } lie;

static const struct {
	const char *name, *text;
} lies[LIES] = {
	[SLOT] = {"a slot that there is none of", "has corrupted the memory it shares with rank 1"},
	[LENGTH] = {"a piece that is too long", "has corrupted the memory it shares with rank 1"},
	[SHORT] = {"a piece that is too short", "has corrupted the memory it shares with rank 1"},
	[NOT_SEALED] = {"memory that can shrink", "has corrupted the memory it shares with rank 1"},
	[TOO_SMALL] = {"memory that is too small", "has corrupted the memory it shares with rank 1"},
	[TWICE] = {"memory twice", "has corrupted the memory it shares with rank 1"},
	[FULL] = {"no descriptor left for memory", "too many open files for the memory that rank 0 shares"},
	[NO_MEMORY_AND_GONE] = {"a piece of memory that never comes", "rank 0 on "},
	[KILLED] = {"killed between two pieces", "rank 0 on "},
};

static void pass(int socket, lie what)
{
	int fd = -1;
	if (what == NOT_SEALED) {
		fd = memfd_create("unsealed", MFD_CLOEXEC);
		if (ftruncate(fd, MULTICAST_BYTES))
			perror("ftruncate");
	} else {
		fd = shm_memory(what == TOO_SMALL ? MULTICAST_BYTES / 2 : MULTICAST_BYTES);
	}
	fd_pass(socket, "", 1, fd);
	if (what == TWICE)
		fd_pass(socket, "", 1, fd);
	close(fd);
}

/* Rank 0 writes a message into the ring by hand. */
static void forge(channel *c, lie what, size_t bytes)
{
	peer_link *l = c->links[1];
	ring_page *page = *(ring_page **)l->impl;
	ring_side *mine = &page->side[1]; /* the lower rank has accepted */
	unsigned char *out = (unsigned char *)page + RING_PAGE + l->h.chunk;
	uint64_t head = atomic_load(&mine->head);
	struct {
		uint32_t magic, seq;
		uint64_t bytes;
		uint32_t slot, length, zero[2];
	} message = {0x4d434731u, l->send.seq, bytes, what == SLOT ? MULTICAST_SLOTS : 0, MULTICAST_SLOT, {0}};

	if (what == LENGTH)
		message.length++;
	if (what == SHORT)
		message.length--;
	if (what < NO_MEMORY_AND_GONE)
		pass(l->fd[0], what);
	memcpy(out + (head & (l->h.chunk - 1)), &message, sizeof message);
	atomic_store(&mine->head, head + sizeof message);
	if (what == TWICE) {
		message.slot = 1;
		memcpy(out + ((head + sizeof message) & (l->h.chunk - 1)), &message.slot, 16);
	}
}

static void deceived(board *b, transport *t, int rank)
{
	lie what = *(lie *)b->arg;
	size_t bytes = 3 * MULTICAST_SLOT;
	unsigned char *x = calloc(1, bytes);
	channel *c = board_channel(b, t, rank, 3);
	const gradcomp_links *l = channel_links(c);
	gradcomp_request r;
	if (rank == 0) {
		/* Connects. */
		if (!l->recv(l->ctx, 1, x, 1, &r, &b->error[0]))
			b->status[0] = l->wait(l->ctx, &r, &b->error[0]);
		forge(c, what, bytes);
		if (what >= NO_MEMORY_AND_GONE) {
			if (what == KILLED)
				usleep(20000);
			raise(SIGKILL);
		}
		b->status[0] = l->recv(l->ctx, 1, x, 1, &r, &b->error[0]);
	} else {
		b->status[1] = l->send(l->ctx, 0, x, 1, &r, &b->error[1]);
		if (what == FULL) {
			int lowest = dup(0);

			close(lowest);
			setrlimit(RLIMIT_NOFILE, &(struct rlimit){(rlim_t)lowest, (rlim_t)lowest});
		}
		if (!b->status[1])
			b->status[1] = l->recv(l->ctx, 0, x, bytes, &r, &b->error[1]);
	}
	if (!b->status[rank])
		b->status[rank] = l->wait(l->ctx, &r, &b->error[rank]);
	b->when[rank] = board_now();
	channel_close(c);
	free(x);
}

static void hostile(void)
{
	for (lie what = SLOT; what < LIES; what++) {
		board *b = board_new(2);
		double start = board_now();

		b->options.allow = "shm";
		b->options.cma = 0;
		b->arg = &what;
		b->body = deceived;
		board_fork(b);
		board_join(b);
		ok(b->status[1] && !strncmp(b->error[1].text, what == FULL ? "rank 1 on " : "rank 0 on ", 10),
		   "%s ends the job", lies[what].name);
		like(b->error[1].text, lies[what].text, "which names the culprit");
		ok(b->when[1] - start < 5 * pace(), "in %.2f s", b->when[1] - start);
		board_free(b);
	}
}

int main(void)
{
	everywhere();
	small_cases();
	hostile();
	return done_testing();
}
