#include "list_names.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "reader.h"

#define TEXT_FIRST 4096u
#define TEXT_BLOCK (1u << 20)

struct list_text {
	struct list_text *next;
	size_t used, size;
	char text[];
};

char *list_text_add(struct list_text **text, const char *dir, const char *name, const char *tail)
{
	size_t a = strlen(dir), b = strlen(name), c = strlen(tail), n = a + b + c + 1;
	struct list_text *t = *text;
	if (!t || t->size - t->used < n) {
		size_t size = t ? TEXT_BLOCK : TEXT_FIRST;
		if (size < n)
			size = n;
		if (!(t = malloc(sizeof *t + size)))
			return NULL;
		*t = (struct list_text){.next = *text, .size = size};
		*text = t;
	}
	char *p = t->text + t->used;
	memcpy(p, dir, a);
	memcpy(p + a, name, b);
	memcpy(p + a + b, tail, c + 1);
	t->used += n;
	return p;
}

int name_list_add(name_list *l, char *name)
{
	if (!name)
		return -1;
	if (l->n == l->capacity) {
		size_t more = l->capacity ? 2 * l->capacity : 16;
		char **p = reallocarray(l->at, more, sizeof *p);
		if (!p)
			return -1;
		l->at = p;
		l->capacity = more;
	}
	l->at[l->n++] = name;
	return 0;
}

bool list_suffix(const char *name, const char *suffixes)
{
	size_t length = strlen(name);
	if (!suffixes)
		return true;
	for (const char *s = suffixes; *s;) {
		size_t n = strcspn(s, "/"), skip = *s == '.';
		if (n > skip && length > n - skip && name[length - (n - skip) - 1] == '.' &&
		    !strncasecmp(name + length - (n - skip), s + skip, n - skip))
			return true;
		s += n + (s[n] == '/');
	}
	return false;
}

int name_list_order(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void name_list_sort(name_list *l)
{
	if (l->n)
		qsort(l->at, l->n, sizeof *l->at, name_list_order);
}

void list_text_free(struct list_text *t)
{
	for (struct list_text *next; t; t = next) {
		next = t->next;
		free(t);
	}
}
