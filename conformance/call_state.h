/* Which function of a plugin runs just now, so that this is known when something breaks. */
#ifndef CONFORMANCE_CALL_STATE_H
#define CONFORMANCE_CALL_STATE_H

#include <stdbool.h>
#include <stdint.h>

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
	CALL_COST,
	CALL_CODES, /* code() beside a decoder */
	CALL_PREDICT,
	CALL_CHOICE,
	CALL_PRIMITIVE /* the first of them, in the order of GRADCOMP_CAN_* */
} call_which;
enum { PRIMITIVES = 12 };

/* Says what runs: read by a signal handler and, when it is in shared memory, by the process that waits. */
typedef struct call_state {
	volatile call_which which;
	volatile int rank, nranks;
	volatile uint32_t round;
	volatile uint64_t count; /* calls that began */
	volatile int done;       /* the group has come to its end */
	volatile int floats;     /* number of floats that a call has left of process_floats(), and which */
	volatile call_which floats_by;
} call_state;
extern call_state *call_now;
/* A function of a step, which must allocate nothing. */
bool call_in_step(void);
const char *call_name(call_which which);

/* Names a collective's primitive, by its bit. */
const char *call_primitive(int bit);
/* Records what is about to run, when it is called directly. */
void call_begin(call_which which, int rank, int nranks, uint32_t round);
void call_end(void);
/* On the thread that has made the call: what it has left of the rounding of floats. call_end() looks too. */
void call_left(call_which which);

#endif
