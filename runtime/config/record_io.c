#include "config/record_io.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/error.h"
#include "base/outfile.h"
#include "base/number.h"
#include "base/suggest.h"
#include "config/spec.h"

#define WIDEST 9007199254740992.0 /* 2^53 */

#define SPEC_LONGEST 4000

static void *place_of(const record_io *t, const field *r)
{
	return (char *)t->base + r->at;
}

/* Returns 1 when the text can be a FIELD_NAME. */
static int name_ok(const char *name)
{
	size_t n = strlen(name);
	if (!n || n >= FIELD_NAME_MAX || name[0] == ' ' || name[n - 1] == ' ')
		return 0;
	for (const char *p = name; *p; p++)
		if (*p < 0x20 || *p > 0x7e || *p == ';' || *p == '#')
			return 0;
	return 1;
}

static const char name_form[] = "1 to 63 printable characters without ';' and '#'";

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

static void take(record_io *t, const field *r, inifile *f, const char *value)
{
	void *at = place_of(t, r);
	int64_t i;
	switch (r->kind) {
	case FIELD_NUMBER:
		record_io_float(f, r->key, value, r->least, r->most, r->unit, at);
		break;
	case FIELD_LINE:
		record_io_line(f, r->key, value, r->most, r->b_most, at);
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
		if (name_ok(value))
			snprintf(at, FIELD_NAME_MAX, "%s", value);
		else
			inifile_fail(f, "%s is '%s'; it must be %s", r->key, value, name_form);
		break;
	case FIELD_SPEC:
		take_spec(f, r->key, value, at);
		t->spec = at;
	}
}

static void take_more(const record_io *t, inifile *f, const char *value)
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

int record_io_take(record_io *t, inifile *f, const char *section, const char *key, const char *value)
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

void record_io_unknown(const record_io *t, inifile *f, const char *section, const char *key)
{
	suggest near;
	suggest_start(&near, key);
	for (size_t i = 0; i < t->n; i++)
		if (!strcmp(t->row[i].section, section))
			suggest_try(&near, t->row[i].key);
	inifile_fail(f, "unknown key '%s' in section [%s]%s", key, section, suggest_text(&near));
}

gradcomp_status record_io_complete(const record_io *t, inifile *f, const char *section, int line)
{
	for (size_t i = 0; i < t->n && !f->status; i++) {
		if (!t->row[i].needed || t->seen[i] || strcmp(t->row[i].section, section))
			continue;
		if (line) {
			f->line = line;
			inifile_fail(f, "this section [%s] has no '%s'", section, t->row[i].key);
		} else {
			f->status = error_set(f->err, GRADCOMP_ERR_INVALID, "%s: there is no '%s' in section [%s]",
			                      f->path, t->row[i].key, section);
		}
	}
	return f->status;
}

int record_io_words(char *text, char **word, int most)
{
	char *rest = NULL;
	int n = 0;
	for (char *w = strtok_r(text, " \t", &rest); w; w = strtok_r(NULL, " \t", &rest)) {
		if (n == most)
			return most + 1;
		word[n++] = w;
	}
	return n;
}

int record_io_float(inifile *f, const char *what, const char *text, double least, double most, const char *unit,
                    double *out)
{
	if (number_float(text, out) == NUMBER_OK && *out >= least && *out <= most)
		return 1;
	inifile_fail(f, "%s is '%s'; it must be %s, %g to %g", what, text, unit, least, most);
	return 0;
}

int record_io_seconds(inifile *f, const char *what, const char *word, double most, double *out)
{
	return record_io_float(f, what, word, 0, most, "seconds", out);
}

int record_io_line(inifile *f, const char *key, const char *text, double a_most, double b_most, double out[2])
{
	char copy[200], *w[2], what[80];
	snprintf(copy, sizeof copy, "%s", text);
	if (record_io_words(copy, w, 2) != 2) {
		inifile_fail(f, "%s is '%s'; write two numbers A B, for A + B x seconds", key, text);
		return 0;
	}
	snprintf(what, sizeof what, "the first number of %s", key);
	if (!record_io_float(f, what, w[0], 0, a_most, "seconds", &out[0]))
		return 0;
	snprintf(what, sizeof what, "the second number of %s", key);
	return record_io_float(f, what, w[1], 0, b_most, "seconds for each x", &out[1]);
}

int record_io_number(inifile *f, const char *what, const char *text, uint32_t next)
{
	int64_t n;
	if (number_int(text, &n) != NUMBER_OK || n < 0 || n > UINT32_MAX)
		inifile_fail(f, "'%s' is no number of a %s", text, what);
	else if (n < next)
		inifile_fail(f, "%s %s was given already, or comes too late; the next is %u", what, text, next);
	else if (n > next)
		inifile_fail(f, "%s %s comes where %u would be right", what, text, next);
	return !f->status;
}

#define SPEC_PIECE 150
#define NAME_LONGEST 80

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
		snprintf(text, capacity, "%g + %g x; the numbers must be seconds, 0 to %g and 0 to %g", d[0], d[1],
		         r->most, r->b_most);
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
		snprintf(text, capacity, "not %s", name_form);
		return memchr(at, 0, FIELD_NAME_MAX) && name_ok(at);
	default: /* SPEC */
		snprintf(text, capacity, "no SPEC; it must be NAME[:key=value,...]");
		return *(char *const *)at ? !spec_name(*(char *const *)at, name, NULL) : !r->needed;
	}
}

gradcomp_status record_io_check(const record_io *t, const char *what, gradcomp_error *err)
{
	char text[200];
	for (size_t i = 0; i < t->n; i++)
		if (!value_ok(&t->row[i], place_of(t, &t->row[i]), text, sizeof text))
			return error_set(err, GRADCOMP_ERR_INVALID, "%s: [%s] %s is %s", what, t->row[i].section,
			                 t->row[i].key, text);
	return GRADCOMP_OK;
}

void record_io_write_spec(FILE *out, const char *key, const char *spec)
{
	size_t n = strlen(spec);
	fprintf(out, "%s = %.*s\n", key, SPEC_PIECE, spec);
	for (size_t at = SPEC_PIECE; at < n; at += SPEC_PIECE)
		fprintf(out, "more = %.*s\n", SPEC_PIECE, spec + at);
}

void record_io_write_name(FILE *out, const char *name)
{
	size_t n = strlen(name);
	if (!n)
		fputc('_', out);
	for (const char *p = n > NAME_LONGEST ? name + n - NAME_LONGEST : name; *p; p++)
		fputc(*p > 0x20 && *p < 0x7f && *p != ';' && *p != '#' ? *p : '_', out);
}

void record_io_write(FILE *out, const record_io *t, const char *section, const char *heading)
{
	fprintf(out, "[%s]\n", heading);
	for (size_t i = 0; i < t->n; i++) {
		const field *r = &t->row[i];
		const void *at = place_of(t, r);
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
				record_io_write_spec(out, r->key, *(char *const *)at);
		}
	}
}

gradcomp_status record_io_read(inifile *f, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
	struct stat st;
	FILE *stream;
	f->path = path;
	if (fd < 0)
		return error_errno(f->err,
		                   errno == ENOENT || errno == ENOTDIR ? GRADCOMP_ERR_NOTFOUND : GRADCOMP_ERR_IO, "%s",
		                   path);
	if (fstat(fd, &st) || !S_ISREG(st.st_mode)) {
		close(fd);
		return error_set(f->err, GRADCOMP_ERR_INVALID, "%s is not a regular file", path);
	}
	stream = fdopen(fd, "r");
	if (!stream) {
		close(fd);
		return error_set(f->err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	}
	inifile_read(f, stream);
	fclose(stream);
	return f->status;
}

gradcomp_status record_io_publish(const char *what, const char *path, void (*print)(FILE *out, const void *data),
                                  const void *data, gradcomp_error *err)
{
	outfile *f;
	gradcomp_status st = outfile_open(what, path, 0, &f, err);
	if (st)
		return st;
	print(outfile_stream(f), data);
	return outfile_close(f, err);
}
