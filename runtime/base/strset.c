#include "base/strset.h"

#include <stdlib.h>
#include <string.h>

void strset_add(strset *n, const char *name, size_t length)
{
	char *copy = strndup(name, length);
	char **more = realloc(n->name, (n->count + 1) * sizeof *more);
	size_t at = 0;
	if (more)
		n->name = more;
	if (!copy || !more)
		goto drop;
	while (at < n->count && strcmp(n->name[at], copy) < 0)
		at++;
	if (at < n->count && !strcmp(n->name[at], copy))
		goto drop;
	memmove(n->name + at + 1, n->name + at, (n->count - at) * sizeof *n->name);
	n->name[at] = copy;
	n->count++;
	return;
drop:
	free(copy);
}

char *strset_join(const strset *n)
{
	size_t bytes = 1;
	char *out, *p;
	for (size_t i = 0; i < n->count; i++)
		bytes += strlen(n->name[i]) + 2;
	out = p = malloc(bytes);
	if (!out)
		return NULL;
	*p = '\0';
	for (size_t i = 0; i < n->count; i++) {
		if (i)
			p = stpcpy(p, ", ");
		p = stpcpy(p, n->name[i]);
	}
	return out;
}

void strset_clear(strset *n)
{
	for (size_t i = 0; i < n->count; i++)
		free(n->name[i]);
	free(n->name);
	*n = (strset){0};
}
