/* Lists what a shared object exports beside its constant. */
#ifndef CONFORMANCE_SYMBOLS_H
#define CONFORMANCE_SYMBOLS_H

/* Returns the first name, beside that of a descriptor, that the object which holds `address` defines for others.
 * Whatever has the same name in the process that loads it, a program or a library, would be called in its place.
 * NULL: none. */
const char *symbols_exported(const void *address);

#endif
