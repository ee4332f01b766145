/* The states of a ticket: all can be come to, and all come to an end, by whatever way. */
#include "io/dataset/node/ticket.h"
#include "tests/support/tap.h"

enum { MINE = 7u << 4, OTHERS = 9u << 4 };

static ticket at(uint32_t word)
{
	ticket t = {.index = 3};
	atomic_store(&t.word, word);
	return t;
}

static unsigned lies; /* wrong answers of ticket_move() */

static bool follows(uint32_t from, uint32_t to)
{
	ticket t = at(from | MINE);
	bool moved = ticket_move(&t, from | MINE, to | OTHERS);
	lies += atomic_load(&t.word) != (moved ? to | OTHERS : from | MINE);
	return moved;
}

/* The states that can be come to from one, as bits. */
static unsigned reach(bool (*way)[TICKET_STATES], unsigned from)
{
	unsigned seen = 1u << from, before;
	do {
		before = seen;
		for (unsigned s = 0; s < TICKET_STATES; s++)
			for (unsigned to = 0; seen >> s & 1 && to < TICKET_STATES; to++)
				seen |= (unsigned)way[s][to] << to;
	} while (seen != before);
	return seen;
}

int main(void)
{
	bool way[TICKET_STATES][TICKET_STATES];
	unsigned all = (1u << TICKET_STATES) - 1, ends = 0, freed = 0;
	ticket t;
	for (unsigned s = 0; s < TICKET_STATES; s++)
		for (unsigned to = 0; to < TICKET_STATES; to++)
			way[s][to] = follows(s, to);
	is_int(lies, 0, "of %d pairs of states a word has changed where ticket_move() says so",
	       TICKET_STATES * TICKET_STATES);
	ok(reach(way, TICKET_FREE) == all, "every state can be come to from FREE");
	for (unsigned s = 0; s < TICKET_STATES; s++) {
		ends += reach(way, s) == all;
		freed += way[s][TICKET_SETUP];
	}
	ok(ends == TICKET_STATES, "and leads back to FREE");
	ok(freed == TICKET_STATES - 1 && !way[TICKET_FLYING][TICKET_SETUP],
	   "the service may take all from a process that has died but what it waits for itself");

	t = at(TICKET_READY | MINE);
	ok(!ticket_move(&t, TICKET_READY | OTHERS, TICKET_HELD | OTHERS) &&
	           atomic_load(&t.word) == (TICKET_READY | MINE),
	   "a word that has changed meanwhile is left alone");
	ok(ticket_become(&t, TICKET_HELD) && atomic_load(&t.word) == (TICKET_HELD | MINE), "its process stays");
	ok(ticket_become(&t, TICKET_FREE) && atomic_load(&t.word) == TICKET_FREE, "but of a free one");
	bool none = true;
	for (uint32_t state = TICKET_STATES; state <= WORD_STATE; state++) {
		t = at(state | MINE);
		none &= !ticket_become(&t, TICKET_FREE) && atomic_load(&t.word) == (state | MINE);
	}
	ok(none, "nothing follows what is no state");
	return done_testing();
}
