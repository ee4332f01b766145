/* inih reads the lines; what it lets pass is refused here. It hands a handler no
 * line number, cuts lines that are longer than its buffer, takes an indented line
 * as more of the key above, and says nothing of sections without keys. So the
 * reader that feeds it looks at every line first. */
#include "conffile.h"

#include <ini.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "error.h"
#include "secure.h"
#include "settings.h"
#include "suggest.h"

typedef struct conffile {
	const char *path;
	FILE *stream;
	int line;
	gradcomp_status status; /* the first thing wrong; *err holds its text */
	gradcomp_error *err;
	conffile_take *take;
	void *ctx;
	int *seen; /* a line number for each setting */
} conffile;

GRADCOMP_PRINTF(2, 3)
static void conffile_fail(conffile *f, const char *fmt, ...)
{
	char text[400];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	f->status = error_set(f->err, GRADCOMP_ERR_INVALID, "%s:%d: %s", f->path, f->line, text);
}

static int known_section(const char *name, size_t n)
{
	for (size_t i = 0; i < settings_count; i++)
		if (!strncmp(settings[i].row.name, name, n) && settings[i].row.name[n] == '.')
			return 1;
	return 0;
}

static const char *section_list(char *out, size_t capacity)
{
	const char *last = "";
	size_t at = 0;

	out[0] = '\0';
	for (size_t i = 0; i < settings_count && at < capacity; i++) {
		const char *name = settings[i].row.name;
		size_t n = strcspn(name, ".");

		if (!strncmp(name, last, n + 1))
			continue;
		at += (size_t)snprintf(out + at, capacity - at, "%s[%.*s]", i ? ", " : "", (int)n, name);
		last = name;
	}
	return out;
}

/* `line` is the text of one line without its end. */
static void conffile_look(conffile *f, const char *line)
{
	const char *p = line + strspn(line, " \t");
	char list[200];
	size_t n;

	if (!*p || *p == ';' || *p == '#')
		return;
	if (p != line) {
		conffile_fail(f, "the line is indented; a value cannot go on over several lines");
		return;
	}
	if (*line != '[')
		return;
	n = strcspn(line + 1, "]");
	p = line + 1 + n;
	if (*p)
		p += 1 + strspn(p + 1, " \t");
	if (line[1 + n] != ']' || (*p && *p != ';' && *p != '#'))
		conffile_fail(f, "'%s' is not a section; write [NAME]", line);
	else if (!known_section(line + 1, n))
		conffile_fail(f, "unknown section [%.*s]; there are %s", (int)n, line + 1,
		              section_list(list, sizeof list));
}

/* fgets() for inih, one whole line a call. */
static char *conffile_line(char *out, int capacity, void *stream)
{
	conffile *f = stream;
	int n = 0, c;

	if (f->status)
		return NULL;
	f->line++;
	while ((c = getc(f->stream)) != EOF && c != '\n') {
		if ((c < 0x20 && c != '\t' && c != '\r') || c == 0x7f) {
			conffile_fail(f, "there is a control character (0x%02x)", c);
			return NULL;
		}
		/* Room for "\r\n" and the final 0. */
		if (n == capacity - 3) {
			conffile_fail(f, "the line is too long; at most %d characters", capacity - 3);
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
	conffile_look(f, f->line == 1 && !strncmp(out, "\xef\xbb\xbf", 3) ? out + 3 : out);
	if (f->status)
		return NULL;
	out[n++] = '\n';
	out[n] = '\0';
	return out;
}

static void unknown_key(conffile *f, const char *section, const char *name, const char *key)
{
	suggest near;

	suggest_start(&near, name);
	for (size_t i = 0; i < settings_count; i++)
		suggest_try(&near, settings[i].row.name);
	conffile_fail(f, "unknown key '%s' in section [%s]%s", key, section, suggest_text(&near));
}

static int conffile_key(void *user, const char *section, const char *key, const char *value)
{
	conffile *f = user;
	char name[128], *origin;
	int index;

	if (f->status)
		return 0;
	if (!*section) {
		conffile_fail(f, "'%s' stands before the first [section]", key);
		return 0;
	}
	snprintf(name, sizeof name, "%s.%s", section, key);
	index = settings_find(name);
	if (index < 0) {
		unknown_key(f, section, name, key);
		return 0;
	}
	if (f->seen[index]) {
		conffile_fail(f, "%s was given in line %d already", name, f->seen[index]);
		return 0;
	}
	f->seen[index] = f->line;
	if (asprintf(&origin, "%s:%d", f->path, f->line) < 0) {
		f->status = error_set(f->err, GRADCOMP_ERR_NOMEM, "no memory for settings");
		return 0;
	}
	f->status = f->take(f->ctx, index, value, origin, f->err);
	free(origin);
	return !f->status;
}

gradcomp_status conffile_read(const char *path, conffile_take *take, void *ctx, gradcomp_error *err)
{
	conffile f = {.path = path, .err = err, .take = take, .ctx = ctx};
	char *real = NULL;
	int fd, bad;

	f.status = secure_open(path, &fd, &real, err);
	if (f.status)
		return f.status;
	f.stream = fdopen(fd, "r");
	f.seen = calloc(settings_count, sizeof *f.seen);
	if (!f.stream || !f.seen) {
		f.status = error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
		goto done;
	}
	bad = ini_parse_stream(conffile_line, &f, conffile_key, &f);
	if (bad && !f.status) {
		f.line = bad;
		if (bad > 0)
			conffile_fail(&f, "this is no comment, no [section] and no key = value");
		else
			f.status = error_set(err, GRADCOMP_ERR_NOMEM, "%s: no memory", path);
	}
done:
	if (f.stream)
		fclose(f.stream);
	else
		close(fd);
	free(f.seen);
	free(real);
	return f.status;
}
