#include "tools/stage_spec.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct choice {
	const char *name;
	int value;
} choice;

static const choice modes[] = {
	{"full", GRADCOMP_STAGE_FULL}, {"shard", GRADCOMP_STAGE_SHARD}, {"link", GRADCOMP_STAGE_LINK}, {0}};
static const choice verifies[] = {{"mtime", 0}, {"sha", GRADCOMP_STAGE_CONTENT}, {"copy", GRADCOMP_STAGE_VERIFY}, {0}};
static const choice links[] = {
	{"refuse", 0}, {"follow", GRADCOMP_STAGE_FOLLOW}, {"rewrite", GRADCOMP_STAGE_REWRITE}, {0}};
static const choice unreadables[] = {{"refuse", 0}, {"skip", GRADCOMP_STAGE_SKIP_UNREADABLE}, {0}};

/* The options of a source that have choices; exclude is the other one. */
static const struct {
	const char *name, *can_be;
	const choice *choices;
	size_t at;
} options[] = {
	{"mode", "full, shard or link", modes, offsetof(stage_source, mode)},
	{"verify", "mtime, sha or copy", verifies, offsetof(stage_source, verify)},
	{"links", "refuse, follow or rewrite", links, offsetof(stage_source, links)},
	{"unreadable", "refuse or skip", unreadables, offsetof(stage_source, unreadable)},
};

#define COUNT(a) (sizeof(a) / sizeof *(a))

static int value_of(const choice *c, const char *word)
{
	for (; c->name; c++)
		if (!strcmp(c->name, word))
			return c->value;
	return -1;
}

static const char *name_of(const choice *c, int value)
{
	for (const choice *p = c; p->name; p++)
		if (p->value == value)
			return p->name;
	return c->name;
}

int stage_spec_mode(const char *word)
{
	return value_of(modes, word);
}

const char *stage_spec_mode_name(int mode)
{
	return name_of(modes, mode);
}

const char *stage_spec_verify_name(int verify)
{
	return name_of(verifies, verify);
}

const char *stage_spec_links_name(int value)
{
	return name_of(links, value);
}

static int wrong(char *why, size_t size, const char *before, const char *found, const char *after)
{
	char name[200];
	snprintf(why, size, "%s%s%s", before, gradcomp_printable(found, name, sizeof name), after);
	return -1;
}

/* A SPEC without its backslashes; `plain` says of each byte that none was before it. */
typedef struct text {
	char byte[STAGE_SPEC_BYTES];
	char plain[STAGE_SPEC_BYTES];
	size_t n;
} text;

static int unescape(const char *in, text *t, char *why, size_t size)
{
	t->n = 0;
	for (const char *p = in; *p; p++, t->n++) {
		if (t->n + 1 >= STAGE_SPEC_BYTES) {
			snprintf(why, size, "the SPEC has more than %d bytes", STAGE_SPEC_BYTES - 1);
			return -1;
		}
		t->plain[t->n] = *p != '\\';
		if (*p == '\\' && (!*++p || !strchr(",\\:", *p)))
			return wrong(why, size, "'", in,
			             "': a backslash stands before ',' ':' or another one only; "
			             "one that is part of a path is written \\\\");
		t->byte[t->n] = *p;
	}
	t->byte[t->n] = 0;
	return 0;
}

/* Returns true when bytes [from, to) look like NAME=VALUE. */
static bool option_like(const text *t, size_t from, size_t to)
{
	size_t i = from;
	while (i < to && t->plain[i] && ((t->byte[i] >= 'a' && t->byte[i] <= 'z') || t->byte[i] == '_'))
		i++;
	return i > from && i < to && t->byte[i] == '=' &&
	       (!memchr(t->byte + i, '/', to - i) || (i - from == 7 && !memcmp(t->byte + from, "exclude", 7)));
}

static int add_exclude(stage_source *s, const char *glob, char *why, size_t size)
{
	char *all;
	if (!*glob || strchr(glob, '\n'))
		return wrong(why, size, "exclude=", glob,
		             ": give a glob, such as *.log or cache/, without a newline (? stands for it)");
	if (asprintf(&all, "%s%s%s", s->exclude ? s->exclude : "", s->exclude ? "\n" : "", glob) < 0)
		return wrong(why, size, "no memory", "", "");
	free(s->exclude);
	s->exclude = all;
	return 0;
}

static int take_option(const text *t, size_t from, size_t to, stage_source *s, char *why, size_t size)
{
	char word[STAGE_SPEC_BYTES], name[100];
	char *value;
	size_t i = 0;
	int *out, got;
	memcpy(word, t->byte + from, to - from);
	word[to - from] = 0;
	value = strchr(word, '=');
	*value++ = 0;
	if (!strcmp(word, "exclude"))
		return add_exclude(s, value, why, size);
	while (i < COUNT(options) && strcmp(word, options[i].name) != 0)
		i++;
	if (i == COUNT(options))
		return wrong(
			why, size, "'", word,
			"' is no option of a source (there are: mode, verify, exclude, links, unreadable); as part of a path it is "
			"written behind ./ or \\:");
	out = (int *)((char *)s + options[i].at);
	if (*out >= 0)
		return wrong(why, size, "'", word, "' is given twice for one source");
	got = value_of(options[i].choices, value);
	if (got < 0) {
		snprintf(why, size, "%s=%s: it can be %s", word, gradcomp_printable(value, name, sizeof name),
		         options[i].can_be);
		return -1;
	}
	*out = got;
	return 0;
}

/* Takes a source, with the first of its options when there is one: [from, to). */
static int take_source(const text *t, size_t from, size_t to, stage_spec *spec, char *why, size_t size)
{
	size_t end = to, option = to;
	stage_source *s = &spec->source[spec->n];
	for (size_t i = to; i-- > from;)
		if (t->byte[i] == ':' && t->plain[i]) {
			if (option_like(t, i + 1, to)) {
				end = i;
				option = i + 1;
			}
			break;
		}
	if (end == from)
		return wrong(why, size, "'", t->byte, "': a source is empty");
	if (spec->n == STAGE_SOURCES) {
		snprintf(why, size, "more than %d sources", STAGE_SOURCES);
		return -1;
	}
	if (end - from == 4 && (!memcmp(t->byte + from, "none", 4) || !memcmp(t->byte + from, "help", 4)))
		return wrong(why, size, "'", t->byte,
		             "': none and help stand alone; a source of that name is written ./none");
	s->path = strndup(t->byte + from, end - from);
	s->mode = s->verify = s->links = s->unreadable = -1;
	if (!s->path)
		return wrong(why, size, "no memory", "", "");
	spec->n++;
	return option < to ? take_option(t, option, to, s, why, size) : 0;
}

int stage_spec_parse(const char *in, stage_spec *spec, char *why, size_t size)
{
	static _Thread_local text t;
	int first = spec->n;
	if (unescape(in, &t, why, size))
		return -1;
	for (size_t from = 0, to;; from = to + 1) {
		int status;

		for (to = from; to < t.n && !(t.byte[to] == ',' && t.plain[to]); to++)
			;
		if (spec->n > first && option_like(&t, from, to))
			status = take_option(&t, from, to, &spec->source[spec->n - 1], why, size);
		else
			status = take_source(&t, from, to, spec, why, size);
		if (status || to >= t.n)
			return status;
	}
}

void stage_spec_clear(stage_spec *spec)
{
	for (int i = 0; i < spec->n; i++)
		free(spec->source[i].path), free(spec->source[i].exclude);
	memset(spec, 0, sizeof *spec);
}
