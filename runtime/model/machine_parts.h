/* Inside of machine.c and machine_read.c. */
#ifndef MODEL_MACHINE_PARTS_H
#define MODEL_MACHINE_PARTS_H

#include "fields.h"
#include "machine.h"

/* Beyond these nothing has been built: a message of a minute, a number that takes ten
 * milliseconds. */
#define MESSAGE_MOST 60
#define ITEM_MOST 1e-2

/* The keys of [machine], [node] and [network], in that order, and of a [compressor N]. */
fields machine_fields(const gradcomp_machine *m);
fields machine_curve_fields(const gradcomp_curve *c);

/* Keys of a [collective N], in the order of the bits GRADCOMP_CAN_*. */
#define MACHINE_PRIMITIVES 12
extern const char *const machine_primitives[MACHINE_PRIMITIVES];

#endif
