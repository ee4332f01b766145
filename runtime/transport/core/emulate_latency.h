/* Added latency, for experiments on a network that has none: what comes
 * over tcp or verbs is shown to the caller only a while after it has arrived. What
 * follows keeps arriving meanwhile, so bandwidth stays what it is, and messages
 * stay in order. */
#ifndef TRANSPORT_CORE_EMULATE_LATENCY_H
#define TRANSPORT_CORE_EMULATE_LATENCY_H

#include "gradcomp/abi.h"

typedef struct delay {
	double fixed, jitter; /* s; a message takes fixed + 0..jitter; both 0: off */
	uint64_t seed;        /* of the jitter */
} delay;

/* "500", "500/100", "500/100/7": microseconds, jitter, seed. NULL and "" are 0. */
gradcomp_status latency_parse(const char *text, delay *out, gradcomp_error *err);
/* What message `seq` from one rank to another takes, s: the same in every run. */
double latency_of(const delay *d, uint64_t channel, int from, int to, uint32_t seq);

#endif
