#include "io/dataset/node/ticket.h"

#define BIT(state) (1u << TICKET_##state)

/* SETUP follows every state but FLYING: the service takes a ticket so to free it for a process that has died. */
static const uint16_t follow[TICKET_STATES] = {
	[TICKET_FREE] = BIT(SETUP),
	[TICKET_SETUP] = BIT(WANTED) | BIT(FREE) | BIT(SETUP),
	[TICKET_WANTED] = BIT(FLYING) | BIT(LOADING) | BIT(FREE) | BIT(SETUP),
	[TICKET_FLYING] = BIT(READY) | BIT(ABSENT) | BIT(WANTED) | BIT(FREE),
	[TICKET_READY] = BIT(HELD) | BIT(SETUP),
	/* READY again: it was taken as it became that of another sample. */
	[TICKET_HELD] = BIT(FREE) | BIT(DAMAGED) | BIT(READY) | BIT(SETUP),
	[TICKET_ABSENT] = BIT(LOADING) | BIT(FREE) | BIT(SETUP),
	[TICKET_LOADING] = BIT(ALLOC) | BIT(OFFERED) | BIT(FREE) | BIT(ABSENT) | BIT(SETUP),
	[TICKET_ALLOC] = BIT(LOADING) | BIT(SETUP),
	[TICKET_OFFERED] = BIT(HELD) | BIT(LEFT) | BIT(SETUP),
	[TICKET_LEFT] = BIT(FREE) | BIT(SETUP),
	[TICKET_DAMAGED] = BIT(FREE) | BIT(SETUP),
};

bool ticket_move(ticket *t, uint32_t word, uint32_t to)
{
	uint32_t from = word & WORD_STATE;
	return from < TICKET_STATES && follow[from] >> (to & WORD_STATE) & 1 &&
	       atomic_compare_exchange_strong(&t->word, &word, to);
}

bool ticket_become(ticket *t, enum ticket_state to)
{
	uint32_t word = atomic_load(&t->word);
	return ticket_move(t, word, to == TICKET_FREE ? TICKET_FREE : (word & ~WORD_STATE) | to);
}
