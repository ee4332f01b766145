/* A sorted set of names. Zero-initialise; one thread at a time. A name for which
 * there is no memory is left out. */
#ifndef NAMES_H
#define NAMES_H

#include <stddef.h>

typedef struct names {
	char **name;
	size_t count;
} names;

void names_add(names *n, const char *name, size_t length);
/* "a, b, c", malloc'ed; NULL when there is no memory. */
char *names_join(const names *n);
void names_clear(names *n);

#endif
