/* inih reads the lines; what it lets pass is refused here. It hands a handler no
 * line number, cuts lines that are longer than its buffer (200 bytes as Debian builds it), takes an
 * indented line as more of the key above, and says nothing of sections without keys. So the
 * reader before it looks at every line first. */
#include "config/inifile.h"

#include <ini.h>
#include <stdlib.h>
#include <string.h>

#include "base/error.h"

#define NO_LINE "this is no comment, no [section] and no key = value"

void inifile_fail(inifile *f, const char *fmt, ...)
{
	char text[400];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	f->status = error_set(f->err, GRADCOMP_ERR_INVALID, "%s:%d: %s", f->path, f->line, text);
}

void inifile_nomem(inifile *f)
{
	f->status = error_set(f->err, GRADCOMP_ERR_NOMEM, "%s: no memory", f->path);
}

/* `line` is the text of one line without its end. */
static void inifile_look(inifile *f, const char *line)
{
	const char *p = line + strspn(line, " \t");
	size_t n;
	if (!*p || *p == ';' || *p == '#')
		return;
	if (p != line) {
		inifile_fail(f, "the line is indented; a value cannot go on over several lines");
		return;
	}
	if (*line != '[')
		return;
	n = strcspn(line + 1, "]");
	p = line + 1 + n;
	if (*p)
		p += 1 + strspn(p + 1, " \t");
	if (line[1 + n] != ']' || (*p && *p != ';' && *p != '#'))
		inifile_fail(f, "'%s' is not a section; write [NAME]", line);
	else
		f->section(f, line + 1, n);
}

/* Returns the text behind '=', without blanks and without a comment after it, ';' or '#' after a blank. NULL: the
 * line is no key = value. */
static char *inifile_value(char *line)
{
	char *value = line + strcspn(line, "=:"), *end;
	if (!*value || value == line)
		return NULL;
	value++;
	for (end = line + 1; *end; end++)
		if ((*end == ';' || *end == '#') && strchr(" \t", end[-1]))
			break;
	if (end < value)
		return NULL;
	while (end > value && strchr(" \t", end[-1]))
		end--;
	*end = '\0';
	return value;
}

/* Reads the next line, without its end, in f->text; false at the end of the file, or when it cannot be. */
static bool inifile_get(inifile *f)
{
	size_t n = 0;
	int c;
	f->line++;
	while ((c = getc(f->stream)) != EOF && c != '\n') {
		if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f || (n && f->text[n - 1] == '\r')) {
			inifile_fail(f, "there is a control character (0x%02x)",
			             n && f->text[n - 1] == '\r' ? '\r' : c);
			return false;
		}
		if (n > INIFILE_LINE || (n == INIFILE_LINE && c != '\r')) {
			inifile_fail(f, "the line is too long; at most %d characters", INIFILE_LINE);
			return false;
		}
		f->text[n++] = (char)c;
	}
	if (ferror(f->stream)) {
		f->status = error_errno(f->err, GRADCOMP_ERR_IO, "%s", f->path);
		return false;
	}
	if (n && f->text[n - 1] == '\r')
		n--;
	f->text[n] = '\0';
	return n || c != EOF;
}

/* fgets() for inih. It has room for few characters, but takes an indented line as more of the key above: a value is
 * given to it in such pieces, each between two bars, which keep it from cutting off blanks or seeing comments. */
static char *inifile_line(char *out, int capacity, void *user)
{
	size_t room = (size_t)capacity - sizeof "\t||\n", n;
	inifile *f = user;
	char *line = f->text, *value;
	if (f->status)
		return NULL;
	if (*f->rest) {
		n = strnlen(f->rest, room);
		snprintf(out, (size_t)capacity, "\t|%.*s|\n", (int)n, f->rest);
		f->rest += n;
		return out;
	}
	if (f->pending) {
		f->pending = false;
		f->value[f->nvalue] = '\0';
		f->key(f, f->in, f->name, f->value);
	}
	if (f->status || !inifile_get(f))
		return NULL;
	f->rest = "";
	if (f->line == 1 && !strncmp(line, "\xef\xbb\xbf", 3))
		line += 3;
	inifile_look(f, line);
	if (f->status)
		return NULL;
	n = strspn(line, " \t");
	if (!line[n] || line[n] == ';' || line[n] == '#') {
		n = 0;
	} else if (*line == '[') {
		n = strcspn(line, "]") + 1;
	} else if ((value = inifile_value(line))) {
		n = (size_t)(value - line);
		f->rest = value + strspn(value, " \t");
	} else {
		inifile_fail(f, NO_LINE);
	}
	if (n > room)
		inifile_fail(f, "a name has at most %zu characters", room);
	snprintf(out, (size_t)capacity, "%.*s\n", (int)n, line);
	return f->status ? NULL : out;
}

static int inifile_key(void *user, const char *section, const char *key, const char *value)
{
	inifile *f = user;
	size_t n = strlen(value);
	if (f->status)
		return 0;
	if (!*section) {
		inifile_fail(f, "'%s' stands before the first [section]", key);
		return 0;
	}
	if (!*key) { /* its pieces would not be taken as its own */
		inifile_fail(f, NO_LINE);
		return 0;
	}
	if (!f->pending) { /* its pieces follow */
		f->pending = true;
		f->nvalue = 0;
		snprintf(f->in, sizeof f->in, "%s", section);
		snprintf(f->name, sizeof f->name, "%s", key);
		return 1;
	}
	memcpy(f->value + f->nvalue, value + 1, n - 2);
	f->nvalue += n - 2;
	return 1;
}

gradcomp_status inifile_read(inifile *f, FILE *stream)
{
	f->stream = stream;
	f->line = 0;
	f->status = GRADCOMP_OK;
	f->pending = false;
	f->rest = "";
	f->text = malloc(INIFILE_LINE + sizeof "\r");
	f->value = malloc(INIFILE_LINE + 1);
	if (!f->text || !f->value || (ini_parse_stream(inifile_line, f, inifile_key, f) && !f->status))
		inifile_nomem(f);
	free(f->text);
	free(f->value);
	return f->status;
}
