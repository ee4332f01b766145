/* The operator tables of this machine (gradcomp/operators.h). */
#ifndef OPERATORS_H
#define OPERATORS_H

#include "gradcomp/operators.h"

/* The best table this processor can run. Constant, never NULL; any thread. */
const gradcomp_operators *operators_cpu(void);
/* One table of host operators by name, so that tests can hold them against each
 * other: "portable", "avx2" or "avx512". NULL when it was not built or cannot run here. */
const gradcomp_operators *operators_cpu_variant(const char *name);

#endif
