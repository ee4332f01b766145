/* Values that do not come from a file: checked, and written. */
#include "fields_parts.h"

#include <math.h>
#include <string.h>

#include "error.h"
#include "number.h"
#include "spec.h"

#define SPEC_PIECE 150
#define NAME_LONGEST 80

int fields_name_ok(const char *name)
{
	size_t n = strlen(name);

	if (!n || n >= FIELD_NAME_MAX || name[0] == ' ' || name[n - 1] == ' ')
		return 0;
	for (const char *p = name; *p; p++)
		if (*p < 0x20 || *p > 0x7e || *p == ';' || *p == '#')
			return 0;
	return 1;
}

const char fields_name_form[] = "1 to 63 printable characters without ';' and '#'";

static int inside(double x, double least, double most)
{
	return isfinite(x) && x >= least && x <= most;
}

static int value_ok(const field *r, const void *at, char *text, size_t capacity)
{
	char name[SPEC_NAME_MAX];
	const double *d = at;
	double x;

	switch (r->kind) {
	case FIELD_NUMBER:
		snprintf(text, capacity, "%g; it must be %s, %g to %g", *d, r->unit, r->least, r->most);
		return inside(*d, r->least, r->most);
	case FIELD_LINE:
		snprintf(text, capacity, "%g + %g x; the numbers must be seconds, 0 to %g and 0 to %g", d[0], d[1], r->most,
		         r->b_most);
		return inside(d[0], 0, r->most) && inside(d[1], 0, r->b_most);
	case FIELD_COUNT:
	case FIELD_LONG:
		x = r->kind == FIELD_COUNT ? *(const uint32_t *)at : (double)*(const uint64_t *)at;
		snprintf(text, capacity, "%.0f; it must be %.0f to %.0f", x, r->least,
		         r->kind == FIELD_COUNT ? r->most : WIDEST);
		return inside(x, r->least, r->kind == FIELD_COUNT ? r->most : WIDEST);
	case FIELD_HASH:
		return 1;
	case FIELD_NAME:
		snprintf(text, capacity, "not %s", fields_name_form);
		return memchr(at, 0, FIELD_NAME_MAX) && fields_name_ok(at);
	default: /* SPEC */
		snprintf(text, capacity, "no SPEC; it must be NAME[:key=value,...]");
		return *(char *const *)at ? !spec_name(*(char *const *)at, name, NULL) : !r->needed;
	}
}

gradcomp_status fields_check(const fields *t, const char *what, gradcomp_error *err)
{
	char text[200];

	for (size_t i = 0; i < t->n; i++)
		if (!value_ok(&t->row[i], fields_place(t, &t->row[i]), text, sizeof text))
			return error_set(err, GRADCOMP_ERR_INVALID, "%s: [%s] %s is %s", what, t->row[i].section, t->row[i].key,
			                 text);
	return GRADCOMP_OK;
}

void fields_write_spec(FILE *out, const char *key, const char *spec)
{
	size_t n = strlen(spec);

	fprintf(out, "%s = %.*s\n", key, SPEC_PIECE, spec);
	for (size_t at = SPEC_PIECE; at < n; at += SPEC_PIECE)
		fprintf(out, "more = %.*s\n", SPEC_PIECE, spec + at);
}

void fields_write_name(FILE *out, const char *name)
{
	size_t n = strlen(name);

	if (!n)
		fputc('_', out);
	for (const char *p = n > NAME_LONGEST ? name + n - NAME_LONGEST : name; *p; p++)
		fputc(*p > 0x20 && *p < 0x7f && *p != ';' ? *p : '_', out);
}

void fields_write(FILE *out, const fields *t, const char *section, const char *heading)
{
	fprintf(out, "[%s]\n", heading);
	for (size_t i = 0; i < t->n; i++) {
		const field *r = &t->row[i];
		const void *at = fields_place(t, r);
		const double *d = at;
		char number[2][NUMBER_TEXT];

		if (strcmp(r->section, section))
			continue;
		switch (r->kind) {
		case FIELD_NUMBER:
			number_put_float(number[0], *d);
			fprintf(out, "%s = %s\n", r->key, number[0]);
			break;
		case FIELD_LINE:
			number_put_float(number[0], d[0]);
			number_put_float(number[1], d[1]);
			fprintf(out, "%s = %s %s\n", r->key, number[0], number[1]);
			break;
		case FIELD_COUNT:
			fprintf(out, "%s = %u\n", r->key, *(const uint32_t *)at);
			break;
		case FIELD_LONG:
			fprintf(out, "%s = %llu\n", r->key, *(const unsigned long long *)at);
			break;
		case FIELD_HASH:
			fprintf(out, "%s = %016llx\n", r->key, *(const unsigned long long *)at);
			break;
		case FIELD_NAME:
			fprintf(out, "%s = %s\n", r->key, (const char *)at);
			break;
		case FIELD_SPEC:
			if (*(char *const *)at)
				fields_write_spec(out, r->key, *(char *const *)at);
		}
	}
}

