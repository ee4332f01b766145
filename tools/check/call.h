/* Every function of a plugin that runs in a step is called through here, so that
 * who was running is known when something breaks, and so that it can run on another
 * thread, or behind the fence. */
#ifndef CHECK_CALL_H
#define CHECK_CALL_H

#include "check/ranks.h"

typedef enum call_which {
	CALL_NONE = 0,
	CALL_CREATE,
	CALL_DESTROY,
	CALL_PLAN,
	CALL_ENCODE,
	CALL_DECODE,
	CALL_MERGE,
	CALL_CODE,
	CALL_CODE_DECODE,
	CALL_CODE_DECODE_ADD,
	CALL_SAVE,
	CALL_LOAD,
	CALL_COST
} call_which;

typedef struct call {
	call_which which;
	int rank;
	uint32_t round;
	const gradcomp_bucket *bucket; /* plan, cost */
	gradcomp_plan *plan;
	gradcomp_cost *cost;
	const gradcomp_work *work;        /* encode, decode, merge */
	const gradcomp_payload *in, *peer; /* decode: in; merge: both */
	uint32_t n;
	gradcomp_payload *out; /* encode, merge */
	const void *from;      /* code functions, load */
	void *to;              /* code functions, save */
	uint64_t count, counter, capacity;
	uint64_t *bytes;
} call;

/* The function that runs, for a signal handler. */
extern call_which call_running;
extern int call_rank, call_nranks;
extern uint32_t call_round;
const char *call_name(call_which which);

gradcomp_status ranks_call(ranks *s, const call *c);
/* Says what is about to run, when it is called directly. */
void call_begin(call_which which, int rank, int nranks, uint32_t round);
void call_end(void);

#endif
