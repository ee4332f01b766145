/* A sorted set of names. Zero-initialise; one thread at a time. A name for which
 * there is no memory is left out. */
#ifndef BASE_STRSET_H
#define BASE_STRSET_H

#include <stddef.h>

typedef struct strset {
	char **name;
	size_t count;
} strset;

void strset_add(strset *n, const char *name, size_t length);
/* "a, b, c", malloc'ed; NULL when there is no memory. */
char *strset_join(const strset *n);
void strset_clear(strset *n);

#endif
