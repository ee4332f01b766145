/* What a shared object exports beside its constant. */
#ifndef TOOLS_CONFORMANCE_SYMBOLS_H
#define TOOLS_CONFORMANCE_SYMBOLS_H

#include <stddef.h>

/* The first name that the object which holds `address` defines for others and must not: one that
 * the process has already, such as the C library's, or that begins with gradcomp_. NULL: none. */
const char *symbols_taken(const void *address);

#endif
