/* Every function of a plugin that runs in a step is called through here, so that
 * who was running is known when something breaks, and so that it can run on another
 * thread, or behind the fence. */
#ifndef CONFORMANCE_CALL_H
#define CONFORMANCE_CALL_H

#include "conformance/call_state.h"
#include "conformance/ranks.h"

typedef struct call {
	call_which which;
	int rank;
	uint32_t round;
	const gradcomp_bucket *bucket; /* plan, cost */
	gradcomp_plan *plan;
	gradcomp_cost *cost;
	const gradcomp_work *work;         /* encode, decode, merge */
	const gradcomp_payload *in, *peer; /* decode: in; merge: both */
	uint32_t n;
	gradcomp_payload *out; /* encode, merge */
	const void *from;      /* code functions, load */
	void *to;              /* code functions, save */
	uint64_t count, counter, capacity;
	uint64_t *bytes;
} call;

/* The stack of a thread of its own, of which the C library has a part. */
enum { CALL_STACK = 512 << 10 };
gradcomp_status ranks_call(ranks *s, const call *c);

/* Remembers with its text a rule that the plugin has broken. Returns INTERNAL. */
gradcomp_status ranks_broke(ranks *s, rule r, const char *fmt, ...) GRADCOMP_PRINTF(3, 4);

#endif
