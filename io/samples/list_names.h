/* Names by the million: strings in blocks that never move, and lists of them. */
#ifndef LIST_NAMES_H
#define LIST_NAMES_H

#include <stddef.h>

struct list_text;
/* The three strings, one behind the other, in memory of *text, which is NULL at first;
 * NULL without memory. */
char *list_text_add(struct list_text **text, const char *dir, const char *name, const char *tail);
void list_text_free(struct list_text *text);

typedef struct names {
	char **at;
	size_t n, capacity;
} names;

/* -1 without memory, and when `name` is NULL. */
int names_add(names *l, char *name);
/* Of two char **, as bytes; for qsort() and bsearch(). */
int names_order(const void *a, const void *b);
void names_sort(names *l);

#endif
