/* Names by the million: strings in blocks that never move, and lists of them. */
#ifndef IO_FORMAT_NAME_LIST_H
#define IO_FORMAT_NAME_LIST_H

#include <stddef.h>

struct list_text;
/* The three strings, one behind the other, in memory of *text, which is NULL at first;
 * NULL without memory. */
char *list_text_add(struct list_text **text, const char *dir, const char *name, const char *tail);
void list_text_free(struct list_text *text);

typedef struct name_list {
	char **at;
	size_t n, capacity;
} name_list;

/* -1 without memory, and when `name` is NULL. */
int name_list_add(name_list *l, char *name);
/* Of two char **, as bytes; for qsort() and bsearch(). */
int name_list_order(const void *a, const void *b);
void name_list_sort(name_list *l);

#endif
