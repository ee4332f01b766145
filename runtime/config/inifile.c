/* inih reads the lines; what it lets pass is refused here. It hands a handler no
 * line number, cuts lines that are longer than its buffer, takes an indented line
 * as more of the key above, and says nothing of sections without keys. So the
 * reader before it looks at every line first. */
#include "config/inifile.h"

#include <ini.h>
#include <string.h>

#include "base/error.h"

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

/* fgets() for inih, one whole line a call. */
static char *inifile_line(char *out, int capacity, void *user)
{
	inifile *f = user;
	int n = 0, c;

	if (f->status)
		return NULL;
	f->line++;
	while ((c = getc(f->stream)) != EOF && c != '\n') {
		if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f || (n && out[n - 1] == '\r')) {
			inifile_fail(f, "there is a control character (0x%02x)", n && out[n - 1] == '\r' ? '\r' : c);
			return NULL;
		}
		/* Room for "\r\n" and the final 0. */
		if (n == capacity - 3) {
			inifile_fail(f, "the line is too long; at most %d characters", capacity - 3);
			return NULL;
		}
		out[n++] = (char)c;
	}
	if (ferror(f->stream)) {
		f->status = error_errno(f->err, GRADCOMP_ERR_IO, "%s", f->path);
		return NULL;
	}
	if (c == EOF && !n)
		return NULL;
	if (n && out[n - 1] == '\r')
		n--;
	out[n] = '\0';
	inifile_look(f, f->line == 1 && !strncmp(out, "\xef\xbb\xbf", 3) ? out + 3 : out);
	if (f->status)
		return NULL;
	out[n++] = '\n';
	out[n] = '\0';
	return out;
}

static int inifile_key(void *user, const char *section, const char *key, const char *value)
{
	inifile *f = user;

	if (f->status)
		return 0;
	if (*section)
		f->key(f, section, key, value);
	else
		inifile_fail(f, "'%s' stands before the first [section]", key);
	return !f->status;
}

gradcomp_status inifile_read(inifile *f, FILE *stream)
{
	int bad;

	f->stream = stream;
	f->line = 0;
	f->status = GRADCOMP_OK;
	bad = ini_parse_stream(inifile_line, f, inifile_key, f);
	if (bad && !f->status) {
		f->line = bad;
		if (bad > 0)
			inifile_fail(f, "this is no comment, no [section] and no key = value");
		else
			inifile_nomem(f);
	}
	return f->status;
}
