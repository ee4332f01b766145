/* The trees that chunks go down: every node gets each chunk once, sends it on to those that wait for
 * it and in the order in which they do, sends no more than it receives, and long before a ring has. */
#include <stdlib.h>
#include <unistd.h>

#include "io/transfer/bcast_tree.h"
#include "tests/support/tap.h"

/* Those that read: all of n, or some. */
static uint32_t choose_owners(uint32_t *owners, uint32_t n, int some)
{
	uint32_t number = 0;
	for (uint32_t i = 0; i < n; i++)
		if (!some || rand() % 3)
			owners[number++] = i;
	if (!number)
		owners[number++] = (uint32_t)rand() % n;
	return number;
}

/* The functions below check who sends what to whom, and in which order. */

struct queue {
	uint64_t *chunk;
	uint64_t n, head;
};

/* All nodes play their turns. Returns what is wrong, or NULL. */
static const char *play(uint32_t n, uint32_t radix, int some, uint64_t chunks)
{
	static bcast_tree t;
	uint32_t *owners = calloc(n, sizeof *owners), *crowd = calloc(n, sizeof *crowd);
	struct queue *to = calloc((size_t)n * BCAST_STRIDES, sizeof *to); /* by node and stride */
	unsigned char *has = calloc(n, chunks);
	const char *wrong = NULL;
	uint32_t nowners = choose_owners(owners, n, some);
	bcast_order o;
	bcast_turn turn;
	bcast_tree_init(&t, n, radix);
	for (uint32_t i = 0; i < n * BCAST_STRIDES; i++)
		to[i].chunk = malloc(chunks * sizeof *to[i].chunk);
	for (uint32_t i = 0; i < n; i++) {
		bcast_order_init(&o, &t, owners, nowners, i, chunks);
		crowd[i] = bcast_crowd(&o);
		while (bcast_next(&o, &turn))
			for (uint32_t k = 0; k < bcast_reach(&t, turn.offset); k++) {
				struct queue *q = &to[(i + t.stride[k]) % n * BCAST_STRIDES + k];
				if (q->n == chunks)
					wrong = "a node is sent more chunks than there are";
				else
					q->chunk[q->n++] = turn.chunk;
			}
	}
	for (uint32_t i = 0; i < n; i++) {
		uint64_t before = 0, last = 0, recent[64] = {0}, turns = 0;
		bcast_order_init(&o, &t, owners, nowners, i, chunks);
		while (bcast_next(&o, &turn)) {
			if (turn.chunk >= chunks || turn.owner != owners[turn.chunk % nowners] ||
			    has[i * chunks + turn.chunk]++)
				wrong = "a chunk has two turns at a node, or none";
			if (turns && (turn.time < before || (turn.time == before && turn.chunk <= last)))
				wrong = "turns are not in their order";
			before = turn.time;
			last = turn.chunk;
			if (turns >= crowd[i] && recent[(turns - crowd[i]) % 64] + BCAST_GAP >= turn.time)
				wrong = "more turns at a time than were announced";
			recent[turns++ % 64] = turn.time;
			if (bcast_hops(&t, turn.offset) > t.hops)
				wrong = "more hops than at most";
			if (!turn.offset)
				continue;
			struct queue *q = &to[i * BCAST_STRIDES + bcast_from(&t, turn.offset)];
			if (q->head == q->n || q->chunk[q->head++] != turn.chunk)
				wrong = "what is sent is not what is waited for";
		}
		if (turns != chunks)
			wrong = "a node does not get all";
	}
	for (uint32_t i = 0; i < n * BCAST_STRIDES; i++) {
		if (to[i].head != to[i].n)
			wrong = "more is sent than is waited for";
		free(to[i].chunk);
	}
	free(owners);
	free(crowd);
	free(to);
	free(has);
	return wrong;
}

static void turns(void)
{
	static const uint32_t sizes[] = {2, 3, 4, 5, 6, 7, 16, 17, 31};
	for (int some = 0; some < 2; some++) {
		const char *wrong = NULL;
		uint32_t n = 0, radix = 0;
		for (int trial = 0; !wrong && trial < 80; trial++) {
			n = trial < 27 ? sizes[trial % 9] : 2 + (uint32_t)rand() % 60;
			radix = trial % 3 == 0 ? BCAST_RADIX : trial % 3 == 1 ? n : 2 + (uint32_t)rand() % 8;
			wrong = play(n, radix, some, 1 + (uint64_t)rand() % 300);
		}
		ok(!wrong, "%s of 2 to 61 nodes read: %s%s (%u nodes, radix %u)", some ? "some" : "all",
		   wrong ? wrong : "all have all, in one order", wrong ? "!" : "", n, radix);
	}
	bcast_tree t;
	bcast_order o;
	bcast_turn turn;
	const uint32_t owners[] = {0, 1, 2};
	uint64_t seen = 0, most = 0;
	bcast_tree_init(&t, 3, BCAST_RADIX);
	bcast_order_init(&o, &t, owners, 3, 1, 1000);
	while (bcast_next(&o, &turn)) {
		seen++;
		most = turn.chunk > most ? turn.chunk : most;
		if (turn.chunk == 20)
			o.chunks = 31;
	}
	ok(seen == 31 && most == 30, "an end that comes nearer");
	bcast_order_init(&o, &t, owners, 3, 1, 0);
	ok(!bcast_next(&o, &turn), "no chunks, no turns");
}

/* Checks how much of all that there is each node sends, and how many chunks it is to send at once beyond those it
 * receives. */
static void load(uint32_t n)
{
	static bcast_tree t;
	uint32_t *owners = calloc(n, sizeof *owners), number = choose_owners(owners, n, 0);
	uint64_t chunks = 2ull * n, sent = 0, turns = 0;
	int64_t more = 0, least = 0, most = 0;
	bcast_order o;
	bcast_turn turn;
	bcast_tree_init(&t, n, BCAST_RADIX);
	bcast_order_init(&o, &t, owners, number, n / 3, chunks);
	for (; bcast_next(&o, &turn); turns++) {
		uint32_t k = bcast_reach(&t, turn.offset);
		sent += k;
		/* A node with nothing to send has no credit for later. */
		more += (int64_t)k - 1;
		least = more < least ? more : least;
		most = more - least > most ? more - least : most;
	}
	uint32_t digits = t.nstrides;
	ok(turns == chunks && sent <= chunks && sent >= chunks - 2, "%u nodes: each sends %llu of %llu chunks", n,
	   (unsigned long long)sent, (unsigned long long)chunks);
	ok(most <= digits + 1 && t.hops <= 15 * digits,
	   "%u nodes: never more than %d beyond those it has received; %u hops at most, a ring has %u", n, (int)most,
	   t.hops, n - 1);
	free(owners);
}

int main(void)
{
	srand((unsigned)getpid());
	printf("# seed %d\n", (int)getpid());
	turns();
	load(4);
	load(10);
	load(100);
	load(1000);
	load(4097);
	load(65536);
	return done_testing();
}
