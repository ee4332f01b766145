#include "io/format/shard_names.h"

#include <errno.h>
#include <glob.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

#define BRACES_MAX 32u
#define RANGE_DIGITS 9u

struct expansion {
	const char *pattern; /* all of it, for messages */
	shard_names *out;
	gradcomp_error *err;
};

static gradcomp_status wrong(const struct expansion *x, gradcomp_status status, const char *what)
{
	char text[TEXT_NAME_MAX];
	return error_set(x->err, status, "%s: %s", gradcomp_printable(x->pattern, text, sizeof text), what);
}

bool shard_names_pattern(const char *path)
{
	return strpbrk(path, "{*?[\\") || strstr(path, "::");
}

/* Takes over `name`; NULL is no memory. */
static gradcomp_status add(const struct expansion *x, char *name)
{
	shard_names *l = x->out;
	if (name && l->n == SHARD_NAMES_MAX) {
		free(name);
		return wrong(x, GRADCOMP_ERR_RANGE, "these are more than 1048576 shards");
	}
	if (name && l->n == l->room) {
		uint64_t more = l->room ? 2 * l->room : 64;
		char **p = reallocarray(l->at, more, sizeof *p);
		if (p) {
			l->at = p;
			l->room = more;
		}
	}
	if (!name || l->n == l->room) {
		free(name);
		return wrong(x, GRADCOMP_ERR_NOMEM, "out of memory");
	}
	l->at[l->n++] = name;
	return GRADCOMP_OK;
}

/* A path that stays right when the process goes to another directory. */
static char *absolute(const char *path)
{
	char here[PATH_MAX], *out;
	if (*path == '/' || !getcwd(here, sizeof here))
		return strdup(path);
	return asprintf(&out, "%s/%s", here, path) < 0 ? NULL : out;
}

static int by_bytes(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

static gradcomp_status add_glob(const struct expansion *x, const char *text)
{
	glob_t found = {0};
	gradcomp_status st = GRADCOMP_OK;
	int e = glob(text, GLOB_NOSORT | GLOB_ERR, NULL, &found);
	if (e == GLOB_NOMATCH)
		st = wrong(x, GRADCOMP_ERR_NOTFOUND, "nothing has such a name");
	else if (e)
		st = wrong(x, e == GLOB_NOSPACE ? GRADCOMP_ERR_NOMEM : GRADCOMP_ERR_IO,
		           e == GLOB_NOSPACE ? "out of memory" : "a folder on its way cannot be read");
	else
		qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, by_bytes);
	for (size_t i = 0; !st && i < found.gl_pathc; i++)
		st = add(x, absolute(found.gl_pathv[i]));
	globfree(&found);
	return st;
}

/* Adds a name or glob that has no braces any more. */
static gradcomp_status add_plain(const struct expansion *x, char *text)
{
	char *to = text;
	bool glob = false;
	if (!*text)
		return wrong(x, GRADCOMP_ERR_INVALID, "a name in it is empty");
	for (const char *p = text; *p; p++)
		if (*p == '\\' && p[1])
			p++;
		else
			glob |= strchr("*?[", *p) != NULL;
	if (glob)
		return add_glob(x, text);
	for (const char *p = text; *p; p++)
		*to++ = *p == '\\' && p[1] ? *++p : *p;
	*to = 0;
	return add(x, absolute(text));
}

/* The '}' of the '{' at p, with the commas between; NULL: it has none. */
static const char *closing(const char *p, unsigned *commas)
{
	unsigned depth = 0;
	*commas = 0;
	for (; *p; p++) {
		if (*p == '\\' && p[1])
			p++;
		else if (*p == '{')
			depth++;
		else if (*p == '}' && !--depth)
			return p;
		else if (*p == ',' && depth == 1)
			++*commas;
	}
	return NULL;
}

static gradcomp_status expand(const struct expansion *x, const char *text, unsigned depth);

/* before + middle + what follows `after`, expanded further. */
static gradcomp_status expand_with(const struct expansion *x, const char *text, size_t before, const char *middle,
                                   size_t bytes, const char *after, unsigned depth)
{
	char *whole;
	if (asprintf(&whole, "%.*s%.*s%s", (int)before, text, (int)bytes, middle, after) < 0)
		return wrong(x, GRADCOMP_ERR_NOMEM, "out of memory");
	gradcomp_status st = expand(x, whole, depth + 1);
	free(whole);
	return st;
}

/* N..M between braces; false: that is not what stands there. */
static bool take_range(const char *p, const char *end, unsigned long *from, unsigned long *to, int *width)
{
	size_t a = strspn(p, "0123456789"), b = 0;
	if (a && !strncmp(p + a, "..", 2))
		b = strspn(p + a + 2, "0123456789");
	if (!b || p + a + 2 + b != end || a > RANGE_DIGITS || b > RANGE_DIGITS)
		return false;
	*from = strtoul(p, NULL, 10);
	*to = strtoul(p + a + 2, NULL, 10);
	*width = (a > 1 && *p == '0') || (b > 1 && p[a + 2] == '0') ? (int)(a > b ? a : b) : 1;
	return true;
}

static gradcomp_status expand(const struct expansion *x, const char *text, unsigned depth)
{
	const char *open = text, *end;
	unsigned commas;
	unsigned long from, to;
	int width;
	gradcomp_status st = GRADCOMP_OK;
	if (strlen(text) >= PATH_MAX)
		return wrong(x, GRADCOMP_ERR_INVALID, "it makes a path of more than 4095 bytes");
	while (*open && *open != '{' && *open != '}')
		open += *open == '\\' && open[1] ? 2 : 1;
	if (!*open) {
		char *copy = strdup(text);
		st = copy ? add_plain(x, copy) : wrong(x, GRADCOMP_ERR_NOMEM, "out of memory");
		free(copy);
		return st;
	}
	if (*open == '}' || !(end = closing(open, &commas)))
		return wrong(x, GRADCOMP_ERR_INVALID,
		             "a brace has no other one; one that is part of a name is written \\{ or \\}");
	if (depth == BRACES_MAX)
		return wrong(x, GRADCOMP_ERR_INVALID, "it has more than 32 pairs of braces");
	size_t before = (size_t)(open - text);
	if (!commas) {
		if (!take_range(open + 1, end, &from, &to, &width) || from > to)
			return wrong(x, GRADCOMP_ERR_INVALID,
			             "between braces there may be a range that ascends, as {000..099}, or a "
			             "list, as {a,b}");
		if (to - from >= SHARD_NAMES_MAX)
			return wrong(x, GRADCOMP_ERR_RANGE, "these are more than 1048576 shards");
		for (; !st && from <= to; from++) {
			char number[2 * RANGE_DIGITS + 2];
			int n = snprintf(number, sizeof number, "%0*lu", width, from);
			st = expand_with(x, text, before, number, (size_t)n, end + 1, depth);
		}
		return st;
	}
	for (const char *p = open + 1, *q = p; !st && q <= end; q++) {
		unsigned ignored;
		const char *inner;
		if (*q == '\\' && q[1])
			q++;
		else if (*q == '{') /* its other one is there, since the outer one has one */
			q = (inner = closing(q, &ignored)) ? inner : end;
		else if (q == end || *q == ',') {
			st = expand_with(x, text, before, p, (size_t)(q - p), end + 1, depth);
			p = q + 1;
		}
	}
	return st;
}

gradcomp_status shard_names_expand(const char *pattern, shard_names *out, gradcomp_error *err)
{
	struct expansion x = {.pattern = pattern, .out = out, .err = err};
	gradcomp_status st = GRADCOMP_OK;
	*out = (shard_names){0};
	for (const char *p = pattern, *q; !st; p = q + 2) {
		for (q = p; *q && strncmp(q, "::", 2) != 0;)
			q += *q == '\\' && q[1] ? 2 : 1;
		char *one = strndup(p, (size_t)(q - p));
		st = one ? expand(&x, one, 0) : wrong(&x, GRADCOMP_ERR_NOMEM, "out of memory");
		free(one);
		if (!*q)
			break;
	}
	if (st)
		shard_names_clear(out);
	return st;
}

void shard_names_clear(shard_names *l)
{
	for (uint64_t i = 0; i < l->n; i++)
		free(l->at[i]);
	free(l->at);
	*l = (shard_names){0};
}
