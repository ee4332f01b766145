/* Says what a candidate's exchanges take, before anybody waits for them.
 *
 * The measured line is that of the base's collective, an all-reduce, in the base's buckets. Compressed messages are
 * smaller: before a trial the same all-reduce is timed at their size, and theirs is that line. What another
 * primitive costs follows from how many messages and bytes its plugin says it takes, against those of that
 * all-reduce. */
#ifndef KINDS_AUTOTUNE_EXCHANGE_COST_H
#define KINDS_AUTOTUNE_EXCHANGE_COST_H

#include "kinds/autotune/tuner.h"

/* Seconds of a message on the critical path, and of a byte there. */
typedef struct exchange_cost {
	double message, byte;
	int nranks, nnodes;
} exchange_cost;

/* Returns the line of the base, or of messages such as candidate k sends, where those have been timed. */
exchange_cost exchange_cost_of(const tuner *c, uint32_t k);
/* Returns the seconds of the exchanges of a bucket of so many numbers: of all its bytes, and of l->exchanges
 * messages' ways. A code's bytes are fewer than the floats' that the primitive is asked about, and coding is part
 * of it. */
double exchange_cost_seconds(const candidate *k, const exchange_cost *w, const candidate_load *l, uint64_t numel);
/* Bytes of an all-reduce of the base that moves as many on its critical path as one of n messages
 * does into which what `l` sends is cut. */
double exchange_cost_size(const tuner *c, const candidate *k, const exchange_cost *w, const candidate_load *l,
                          uint64_t numel, double n);
/* Returns the seconds of one more exchange of the base. */
double exchange_cost_base(const tuner *c, const exchange_cost *w);

/* tensor_assign.c: what each tensor is best off with, when candidate k is to be used, into
 * of[]. 0: there is no mix but for what one of the others would have. */
int tensor_assign(const tuner *c, uint32_t k, const exchange_cost *w, uint8_t *of);

#endif
