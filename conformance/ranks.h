/* P ranks of one compressor in one process: the harness makes the instances, plays
 * the host (error memory, buckets, work) and the exchange, which sums in the
 * order of a ring, gathers by hand, merges along a binomial tree and runs codes as a
 * compressed ring does. A guard page follows every buffer, and buffers are read-only where the
 * contract says so: a plugin that breaks a bound ends the program.
 *
 * Uses the public headers, an operator table and parsed values, nothing else of
 * the library. One thread, unless `hop` is set. */
#ifndef CONFORMANCE_RANKS_H
#define CONFORMANCE_RANKS_H

#include "conformance/guard.h"
#include "conformance/host.h"
#include "conformance/rules.h"
#include "gradcomp/compressor.h"

#include <stdbool.h>

/* One tensor is there beside those that are reduced: see ranks_far. */
enum { RANKS_MAX = 33, TENSORS_MAX = 301, STATES_MAX = 8 };

typedef struct ranks {
	const struct gradcomp_compressor_v1 *plugin;
	const gradcomp_value *values;
	gradcomp_host host;
	int P;
	uint32_t patterns; /* that plan() may ask for; 0: the descriptor's */
	gradcomp_tensor tensors[TENSORS_MAX];
	gradcomp_layout layout[RANKS_MAX];
	gradcomp_bucket buckets[TENSORS_MAX];
	uint32_t nbuckets;
	uint32_t first;       /* tensor that is reduced; those before only take up room in the layout */
	uint64_t base, numel; /* where it starts in the layout, and the numbers from there on */
	void *instance[RANKS_MAX];
	float *error[RANKS_MAX], *state[RANKS_MAX]; /* numel, and state_arrays times that */
	uint64_t step;
	uint64_t sent; /* payload bytes of a rank in the last step */
	uint64_t sent_of[RANKS_MAX];
	bool light;             /* guards are light but for every eighth step, see guard.h */
	int abandon;            /* encode round 0 and stop, as when a gradient is not finite */
	unsigned char stale;    /* every byte of a payload or code is this before it is made; 0: that of guard.h */
	int hop;                /* call the plugin's functions on one thread after another */
	gradcomp_device device; /* CUDA: of the fenced device, see device.h */
	const gradcomp_operators *device_operators;
	int intact; /* no buffer was written outside of its bounds, no input changed */
	/* Called with payloads before the plugin sees them, to tamper with them: all P
	 * of a gathered round, the sum alone, or two of which in[1] is a peer's, for
	 * merge() and the code functions (in[0].data is NULL there). A rank's own
	 * gathered payload reaches it as it was. */
	void (*tamper)(struct ranks *s, gradcomp_payload *in, uint32_t n);
	/* Called with every payload as it was made, in order, to record it or to put
	 * another in its place; at most `capacity` bytes. */
	void (*made)(struct ranks *s, const gradcomp_bucket *bucket, uint32_t round, int rank,
	             gradcomp_payload *payload);
	rule broke; /* by the plugin, found by the harness */
	gradcomp_error err;
} ranks;

/* The patterns that plan() may ask for in ranks that are opened from now on: a descriptor's `instead`, or 0 for its
 * `patterns`. */
extern uint32_t ranks_patterns;
/* Where their work will be: CUDA is the fenced device. */
extern gradcomp_device ranks_device;
/* Before the tensors there is one of 2^32 numbers, which is never reduced. */
extern bool ranks_far;
uint32_t ranks_planned(const struct gradcomp_compressor_v1 *plugin);

/* dims: two numbers a tensor; 0 as the second: a vector of the first. They
 * must outlive s. */
gradcomp_status ranks_open(ranks *s, const struct gradcomp_compressor_v1 *plugin, const gradcomp_operators *op,
                           const gradcomp_value *values, int P, uint32_t ntensors, uint64_t (*dims)[2], uint64_t seed);
void ranks_close(ranks *s);
/* Plans buckets of at most `most` elements, at least one tensor each. */
void ranks_plan(ranks *s, uint64_t most);
/* grad[w]: the gradients of rank w on entry, the average on return. With
 * `interleave` the buckets are all in flight at once. */
gradcomp_status ranks_step(ranks *s, float **grad, int interleave);
/* All of rank w's state goes from one set of ranks to another, as through a
 * checkpoint. */
gradcomp_status ranks_carry(ranks *from, ranks *to, int w);

#endif
