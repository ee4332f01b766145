/* Inside of machine.c and machine_read.c. */
#ifndef COST_MACHINE_INTERNAL_H
#define COST_MACHINE_INTERNAL_H

#include "config/record_io.h"
#include "cost/machine.h"

/* Beyond these nothing has been built: a message of a minute, a number that takes ten
 * milliseconds. */
#define MESSAGE_MOST 60
#define ITEM_MOST 1e-2

/* The keys of [machine], [node] and [network], in that order, and of a [compressor N]. */
record_io machine_fields(const gradcomp_machine *m);
record_io machine_curve_fields(const gradcomp_curve *c);

/* Keys of a [collective N], in the order of the bits GRADCOMP_CAN_*. */
#define MACHINE_PRIMITIVES 12
extern const char *const machine_primitives[MACHINE_PRIMITIVES];

#endif
