/* Values of a file, taken by their rows. */
#include "fields_parts.h"

#include <stdlib.h>
#include <string.h>

#include "error.h"
#include "number.h"
#include "spec.h"
#include "suggest.h"

#define SPEC_LONGEST 4000

static int take_count(inifile *f, const field *r, const char *text, double most, int64_t *out)
{
	if (number_int(text, out) == NUMBER_OK && (double)*out >= r->least && (double)*out <= most)
		return 1;
	inifile_fail(f, "%s is '%s'; it must be a whole number, %.0f to %.0f", r->key, text, r->least, most);
	return 0;
}

static int take_hash(inifile *f, const field *r, const char *text, uint64_t *out)
{
	size_t n = strspn(text, "0123456789abcdef");

	if (n != 16 || text[n]) {
		inifile_fail(f, "%s is '%s'; it must be 16 hexadecimal digits", r->key, text);
		return 0;
	}
	*out = strtoull(text, NULL, 16);
	return 1;
}

static void take_spec(inifile *f, const char *key, const char *text, char **out)
{
	char name[SPEC_NAME_MAX];
	gradcomp_error why;

	if (spec_name(text, name, &why))
		inifile_fail(f, "%s: %s", key, why.text);
	else if (!(*out = strdup(text)))
		inifile_nomem(f);
}

static void take(fields *t, const field *r, inifile *f, const char *value)
{
	void *at = fields_place(t, r);
	int64_t i;

	switch (r->kind) {
	case FIELD_NUMBER:
		fields_float(f, r->key, value, r->least, r->most, r->unit, at);
		break;
	case FIELD_LINE:
		fields_line(f, r->key, value, r->most, r->b_most, at);
		break;
	case FIELD_COUNT:
		if (take_count(f, r, value, r->most, &i))
			*(uint32_t *)at = (uint32_t)i;
		break;
	case FIELD_LONG:
		if (take_count(f, r, value, WIDEST, &i))
			*(uint64_t *)at = (uint64_t)i;
		break;
	case FIELD_HASH:
		take_hash(f, r, value, at);
		break;
	case FIELD_NAME:
		if (fields_name_ok(value))
			snprintf(at, FIELD_NAME_MAX, "%s", value);
		else
			inifile_fail(f, "%s is '%s'; it must be %s", r->key, value, fields_name_form);
		break;
	case FIELD_SPEC:
		take_spec(f, r->key, value, at);
		t->spec = at;
	}
}

static void take_more(const fields *t, inifile *f, const char *value)
{
	char *whole;

	if (!t->spec || !*t->spec) {
		inifile_fail(f, "'more' stands behind no SPEC");
		return;
	}
	if (strlen(*t->spec) + strlen(value) > SPEC_LONGEST) {
		inifile_fail(f, "the SPEC is longer than %d characters", SPEC_LONGEST);
		return;
	}
	if (asprintf(&whole, "%s%s", *t->spec, value) < 0) {
		inifile_nomem(f);
		return;
	}
	free(*t->spec);
	*t->spec = whole;
}

int fields_take(fields *t, inifile *f, const char *section, const char *key, const char *value)
{
	if (!strcmp(key, "more")) {
		take_more(t, f, value);
		return 1;
	}
	t->spec = NULL;
	for (size_t i = 0; i < t->n; i++) {
		const field *r = &t->row[i];

		if (strcmp(r->section, section) || strcmp(r->key, key))
			continue;
		if (t->seen[i])
			inifile_fail(f, "%s was given in line %d already", key, t->seen[i]);
		else
			take(t, r, f, value);
		t->seen[i] = f->line;
		return 1;
	}
	return 0;
}

void fields_unknown(const fields *t, inifile *f, const char *section, const char *key)
{
	suggest near;

	suggest_start(&near, key);
	for (size_t i = 0; i < t->n; i++)
		if (!strcmp(t->row[i].section, section))
			suggest_try(&near, t->row[i].key);
	inifile_fail(f, "unknown key '%s' in section [%s]%s", key, section, suggest_text(&near));
}

gradcomp_status fields_complete(const fields *t, inifile *f, const char *section, int line)
{
	for (size_t i = 0; i < t->n && !f->status; i++) {
		if (!t->row[i].needed || t->seen[i] || strcmp(t->row[i].section, section))
			continue;
		if (line) {
			f->line = line;
			inifile_fail(f, "this section [%s] has no '%s'", section, t->row[i].key);
		} else {
			f->status = error_set(f->err, GRADCOMP_ERR_INVALID, "%s: there is no '%s' in section [%s]", f->path,
			                      t->row[i].key, section);
		}
	}
	return f->status;
}
