#include "config/name_rules.h"

#include <ctype.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"
#include "config/spec.h"

bool name_rules_is(const char *text)
{
	return text[strcspn(text, "=:/")] == '=';
}

/* Cuts off the blanks around a piece. */
static char *trim(char *piece)
{
	piece += strspn(piece, " ");
	size_t n = strlen(piece);
	while (n && piece[n - 1] == ' ')
		n--;
	piece[n] = '\0';
	return piece;
}

static gradcomp_status wrong(uint32_t number, const char *glob, const char *why, gradcomp_error *err)
{
	return error_set(err, GRADCOMP_ERR_INVALID, "SPECs by name, rule %u '%.60s': %s", number + 1, glob, why);
}

static gradcomp_status take_rule(name_rules *r, char *piece, gradcomp_error *err)
{
	name_rule *rule = &r->rule[r->n];
	char *spec = piece, name[SPEC_NAME_MAX];
	gradcomp_error inner;
	if (r->n == NAME_RULES)
		return error_set(err, GRADCOMP_ERR_INVALID, "SPECs by name: at most %d rules are taken", NAME_RULES);
	rule->glob = trim(strsep(&spec, "="));
	if (!*rule->glob || !spec)
		return wrong(r->n, rule->glob,
		             "a rule is GLOB=SPEC, such as *.bias=none, and rules are separated by '+'", err);
	for (uint32_t i = 0; i < r->n; i++)
		if (!strcmp(r->rule[i].glob, "*") || !strcmp(r->rule[i].glob, rule->glob))
			return wrong(r->n, rule->glob,
			             "it is for nothing, since a rule before it is for all of it: put it before that",
			             err);
	rule->spec = spec = trim(spec);
	char *collective = strrchr(spec, '@');
	if (collective) {
		*collective = '\0';
		rule->collective = collective + 1;
	}
	if (spec_name(spec, name, &inner) || (rule->collective && spec_name(rule->collective, name, &inner)))
		return wrong(r->n, rule->glob, inner.text, err);
	if (!strcmp(name, "auto"))
		return wrong(
			r->n, rule->glob,
			"'auto' chooses for each tensor by itself: name a compressor, or take auto for the whole model",
			err);
	r->n++;
	return GRADCOMP_OK;
}

/* Writes the text anew, as all ranks compare it. */
static void put_text(name_rules *r)
{
	char *at = r->text;
	for (uint32_t i = 0; i < r->n; i++) {
		const name_rule *rule = &r->rule[i];
		at = stpcpy(stpcpy(stpcpy(stpcpy(at, i ? "+" : ""), rule->glob), "="), rule->spec);
		if (rule->collective)
			at = stpcpy(stpcpy(at, "@"), rule->collective);
	}
}

gradcomp_status name_rules_parse(const char *text, name_rules *r, gradcomp_error *err)
{
	const size_t length = strlen(text);
	gradcomp_status st = GRADCOMP_OK;
	*r = (name_rules){0};
	if (length > NAME_RULES_MAX)
		return error_set(err, GRADCOMP_ERR_INVALID, "SPECs by name of %zu characters: at most %d are taken",
		                 length, NAME_RULES_MAX);
	for (size_t i = 0; i < length; i++)
		if (iscntrl((unsigned char)text[i]))
			return error_set(err, GRADCOMP_ERR_INVALID,
			                 "SPECs by name have a control character at character %zu", i + 1);
	r->words = strdup(text);
	r->text = malloc(length + sizeof "+*=none");
	if (!r->words || !r->text)
		return error_set(err, GRADCOMP_ERR_NOMEM, "no memory for SPECs by name");
	for (char *next = r->words; !st && next;)
		st = take_rule(r, strsep(&next, "+"), err);
	if (st)
		return st;
	if (strcmp(r->rule[r->n - 1].glob, "*") != 0)
		r->rule[r->n++] = (name_rule){"*", "none", NULL};
	put_text(r);
	return GRADCOMP_OK;
}

uint32_t name_rules_find(const name_rules *r, const char *name)
{
	uint32_t i = 0;
	while (i + 1 < r->n && fnmatch(r->rule[i].glob, name, 0))
		i++;
	return i;
}

void name_rules_clear(name_rules *r)
{
	free(r->text);
	free(r->words);
	*r = (name_rules){0};
}
